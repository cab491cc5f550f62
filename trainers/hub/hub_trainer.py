"""A trainer that publishes its run on the Hub, once, at the end."""

from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo
from transformers.trainer_utils import HubStrategy

from csekit.modeling import CSEModel
from csekit.modeling.export import check_exportable
from csekit.trainers.base_trainer import TermsTrainer
from csekit.trainers.hub.publishing import check_access, push_run


class HubTrainer(TermsTrainer):
    """A trainer whose ``push_to_hub`` publishes the run as ``csekit push`` does: the export and the model in
    ``training/`` in one commit, without checkpoints and trainer state. With ``push_to_hub`` in the arguments, it
    checks your login before training starts; the training scripts publish at the end.

    Raises:
        ValueError: ``hub_strategy`` is not ``end``, or ``hub_model_id`` is in another user's namespace.
        PublishError: the Hub does not accept the token, or cannot be reached.
    """

    model: CSEModel

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Check access to ``hub_model_id`` before training. The first push creates the repository."""
        if self.args.hub_strategy != HubStrategy.END:
            got = HubStrategy(self.args.hub_strategy).value
            raise ValueError(f"hub_strategy must be 'end': a run is published once, got {got!r}")
        if self.is_world_process_zero():
            wanted = self.args.hub_model_id or Path(str(self.args.output_dir)).resolve().name
            self.hub_model_id = check_access(wanted, token or self.args.hub_token)  # type: ignore[assignment]

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Do nothing: checkpoints are not published."""

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        token, self.args.hub_token = self.args.hub_token, None  # Transformers pickles the arguments beside the weights
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
        """Save the current model, write a card if there is none, and publish the run with ``push_run``.

        Arguments:
            commit_message, token, revision, private: as in ``push_run``; default: those of the training arguments
                (``hub_token``, ``hub_revision``, ``hub_private_repo``).
            blocking: must be True.
            options: ``training``, ``custom_code``, ``create_pr``, as in ``push_run``.

        Returns:
            the commit on the main process, None on the others.

        Raises:
            ValueError: the pooling has no export, or ``blocking`` is False.
            PublishError: as in ``push_run``.
        """
        if not blocking:
            raise ValueError("blocking must be True: the run is published in one commit, got False")
        if not options.get("custom_code"):
            check_exportable(self.model.config.pooling)
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        self.save_models()
        if not self.is_world_process_zero():
            return None
        folder = Path(str(self.args.output_dir))
        if not (folder / "README.md").is_file():
            self.write_record()
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

    def save_models(self) -> Path:
        """Write the model into the run's folder."""
        raise NotImplementedError

    def write_record(self) -> None:
        """Write the results and the card of the run into its folder."""
        raise NotImplementedError
