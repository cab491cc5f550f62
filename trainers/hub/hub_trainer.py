"""The trainer's ways to the Hub: one, at the end, of the whole run."""

from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo
from transformers.trainer_utils import HubStrategy

from csekit.modeling import CSEModel
from csekit.modeling.export import check_exportable
from csekit.trainers.base_trainer import TermsTrainer
from csekit.trainers.hub.card import write_model_card
from csekit.trainers.hub.publishing import check_access, push_run


class HubTrainer(TermsTrainer):
    """A trainer whose ``push_to_hub`` publishes the run as ``csekit push`` does: the export, and the model in
    ``training/``, in one commit; no checkpoints, no state. With ``push_to_hub`` in the arguments, who may write where
    is asked before training; the training scripts publish at the end.

    Raises:
        ValueError: a ``hub_strategy`` other than ``end``, a ``hub_model_id`` in a namespace of somebody else.
        PublishError: the Hub does not accept the token, or cannot be reached.
    """

    model: CSEModel

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Settle ``hub_model_id``, before training. The repository is made when there is something to publish."""
        if self.args.hub_strategy != HubStrategy.END:
            got = HubStrategy(self.args.hub_strategy).value
            raise ValueError(f"hub_strategy must be 'end': a run is published whole, got {got!r}")
        if self.is_world_process_zero():
            wanted = self.args.hub_model_id or Path(str(self.args.output_dir)).resolve().name
            self.hub_model_id = check_access(wanted, token or self.args.hub_token)  # type: ignore[assignment]

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Nothing: checkpoints are not published."""

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        token, self.args.hub_token = self.args.hub_token, None  # the arguments are pickled beside the weights
        try:
            super()._save(output_dir, state_dict)
        finally:
            self.args.hub_token = token

    def push_to_hub(  # type: ignore[override]
        self,
        commit_message: str | None = None,
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **options: Any,
    ) -> CommitInfo | None:
        """Save the model as it is, and publish the run: see ``push_run``. A card is written where there is none.

        Arguments:
            commit_message, token, revision, private: as for ``push_run``; default: those of the arguments
                (``hub_token``, ``hub_revision``, ``hub_private_repo``).
            blocking: must be True.
            options: ``training``, ``custom_code``, ``create_pr``, as for ``push_run``.

        Returns:
            the commit, on the process that made it.

        Raises:
            ValueError: a pooling that has no export; ``blocking`` False.
            PublishError: as ``push_run``.
        """
        if not blocking:
            raise ValueError("blocking must be True: one commit either is made or is not, got False")
        if not options.get("custom_code"):
            check_exportable(self.model.config.pooling)
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        self.save_run()
        if not self.is_world_process_zero():
            return None
        folder = Path(str(self.args.output_dir))
        if not (folder / "README.md").is_file():
            write_model_card(folder, self.results(), base_model=self.model.backbone.name_or_path or "")
        private = self.args.hub_private_repo if private is None else private
        return push_run(
            folder,
            self.hub_model_id or self.args.hub_model_id or folder.resolve().name,
            private=private,
            revision=revision or self.args.hub_revision,
            commit_message=commit_message,
            token=token or self.args.hub_token,
            **options,
        )

    def save_run(self) -> Path:
        """Write the run's folder; a trainer says how."""
        raise NotImplementedError

    def results(self) -> dict[str, Any]:
        """What a trainer knows of its run, for the card; a trainer says it."""
        raise NotImplementedError
