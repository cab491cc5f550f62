"""Freeze the encoder's weights that no gradient reaches, which a training in several processes would wait for.

Some families have weights that csekit does not use: a pooler that Transformers cannot leave out (SqueezeBERT,
LayoutLM), maps of global attention (Longformer) or of entities (LUKE). Their gradient is None, so that they never
change. ``DistributedDataParallel`` stops in the second step where a weight that trains has got no gradient.
"""

from typing import Any

import torch
from transformers import PreTrainedModel

from csekit.encoding.chunks import evaluating
from csekit.modeling.backbone import short_text


def freeze_unused(model: PreTrainedModel) -> None:
    """Freeze what a text's hidden states do not depend on, in the encoder and in other encoders of its class."""
    backbone: Any = model.backbone
    unused = unused_weights(backbone)
    for module in model.modules():
        if type(module) is type(backbone):
            for name, weight in module.named_parameters():
                if name in unused:
                    weight.requires_grad_(False)


def unused_weights(backbone: PreTrainedModel) -> set[str]:
    """Return the names of an encoder's trained weights that the hidden states of a text do not depend on."""
    ids = short_text(backbone)
    with evaluating(backbone), torch.enable_grad():
        states = backbone(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    used = _weights_behind(states)
    return {name for name, weight in backbone.named_parameters() if weight.requires_grad and id(weight) not in used}


def _weights_behind(result: torch.Tensor) -> set[int]:
    """Return the ids of the leaves of a tensor's graph; the backward pass is not computed."""
    nodes, seen, found = [result.grad_fn], set(), set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.add(id(node.variable))
        nodes.extend(following for following, _ in node.next_functions)
    return found
