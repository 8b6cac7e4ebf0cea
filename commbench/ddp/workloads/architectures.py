"""Residual networks and transformers, written out so that their parameters are exactly those of the published ones.

torch has no types here, so its classes count as Any.
"""
# mypy: disallow-subclassing-any=False

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around which the input is added: the block of ResNet-18 (He et al., 2015)."""

    expansion = 1

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = projection(channels_in, width, stride)

    def forward(self, images: Tensor) -> Tensor:
        """Map (batch, channels_in, h, w) to (batch, width, h / stride, w / stride)."""
        hidden = functional.relu(self.bn1(self.conv1(images)))
        return functional.relu(self.bn2(self.conv2(hidden)) + self.shortcut(images))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around which the input is added: ResNet-50's block, stride in the 3x3 (v1.5)."""

    expansion = 4

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        channels_out = width * self.expansion
        self.conv1 = nn.Conv2d(channels_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, channels_out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels_out)
        self.shortcut = projection(channels_in, channels_out, stride)

    def forward(self, images: Tensor) -> Tensor:
        """Map (batch, channels_in, h, w) to (batch, 4 width, h / stride, w / stride)."""
        hidden = functional.relu(self.bn1(self.conv1(images)))
        hidden = functional.relu(self.bn2(self.conv2(hidden)))
        return functional.relu(self.bn3(self.conv3(hidden)) + self.shortcut(images))


def projection(channels_in: int, channels_out: int, stride: int) -> nn.Module:
    """Return what brings a block's input to the shape of its output."""
    if stride == 1 and channels_in == channels_out:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(channels_in, channels_out, 1, stride, bias=False), nn.BatchNorm2d(channels_out))


def resnet(
    block: type[BasicBlock | Bottleneck], depths: Sequence[int], classes: int, *, small_images: bool
) -> nn.Sequential:
    """Return a residual network with ``depths[i]`` blocks of width 64 * 2**i in stage i.

    ``small_images`` has the 3x3 stem without pooling that is usual for 32x32 images, else the 7x7 one of ImageNet.
    """
    kernel, stride = (3, 1) if small_images else (7, 2)
    stages: list[nn.Module] = []
    channels = 64
    for stage, depth in enumerate(depths):
        width = 64 * 2**stage
        for index in range(depth):
            stages.append(block(channels, width, stride=2 if stage > 0 and index == 0 else 1))
            channels = width * block.expansion
    return nn.Sequential(
        nn.Conv2d(3, 64, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.Identity() if small_images else nn.MaxPool2d(3, 2, padding=1),
        *stages,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, classes),
    )


class Attention(nn.Module):
    """Multi-head self-attention; ``packed`` has one matrix for queries, keys and values, as GPT-2, else three."""

    def __init__(self, width: int, heads: int, *, packed: bool, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        sizes = [3 * width] if packed else [width, width, width]
        self.inputs = nn.ModuleList(nn.Linear(width, size) for size in sizes)
        self.output = nn.Linear(width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map (batch, positions, width) to the same shape."""
        batch, positions, width = hidden.shape
        packed = torch.cat([layer(hidden) for layer in self.inputs], dim=-1)
        query, key, value = packed.view(batch, positions, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.output(mixed.transpose(1, 2).reshape(batch, positions, width))


class TransformerLayer(nn.Module):
    """Attention and a four times wider MLP; normalised before each (GPT-2) or after it (BERT)."""

    def __init__(self, width: int, heads: int, *, decoder: bool) -> None:
        super().__init__()
        self.norm_first = decoder
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, packed=decoder, causal=decoder)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: Tensor) -> Tensor:
        """Map (batch, positions, width) to the same shape."""
        if self.norm_first:
            hidden = hidden + self.attention(self.norm1(hidden))
            return hidden + self.mlp(self.norm2(hidden))
        hidden = self.norm1(hidden + self.attention(hidden))
        return self.norm2(hidden + self.mlp(hidden))


class Decoder(nn.Module):
    """GPT-2's decoder (Radford et al., 2019): learned positions, norms first, output matrix tied to the embedding."""

    def __init__(self, *, vocabulary: int, positions: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(positions, width)
        self.layers = nn.ModuleList(TransformerLayer(width, heads, decoder=True) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.apply(initialise)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token numbers (batch, positions) to logits (batch, positions, vocabulary)."""
        hidden = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for layer in self.layers:
            hidden = layer(hidden)
        return functional.linear(self.norm(hidden), self.tokens.weight)


class Encoder(nn.Module):
    """BERT's encoder with its pooler (Devlin et al., 2018): norms last, separate queries, keys and values."""

    def __init__(self, *, vocabulary: int, positions: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(positions, width)
        self.segments = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(TransformerLayer(width, heads, decoder=False) for _ in range(layers))
        self.pooler = nn.Linear(width, width)
        self.apply(initialise)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token numbers (batch, positions) to pooled states (batch, width); all tokens are of segment 0."""
        hidden = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]] + self.segments.weight[0]
        hidden = self.norm(hidden)
        for layer in self.layers:
            hidden = layer(hidden)
        return torch.tanh(self.pooler(hidden[:, 0]))


def initialise(module: nn.Module) -> None:
    """Draw matrices from a normal distribution with deviation 0.02 and zero biases, as GPT-2 and BERT do."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


def parameter_count(model: nn.Module) -> int:
    """Return the number of elements of all parameters, each counted once."""
    return sum(parameter.numel() for parameter in model.parameters())
