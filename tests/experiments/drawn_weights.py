"""Tiny models whose weights no formula may take for zeros or ones."""

import torch


def perturbed(make):
    """The model that ``make`` returns, in evaluation mode, with noise on every parameter."""
    torch.manual_seed(3)
    made = make().eval()
    for parameter in made.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return made
