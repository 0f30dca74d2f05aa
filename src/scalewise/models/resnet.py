"""Residual networks for images (He et al., 2016), with the stride in the 3x3 convolution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from scalewise.models.objectives import Classification, check_at_least, check_equal, linear_flops

_STAGES = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}
_STAGE_CHANNELS = (64, 128, 256, 512)


class ResidualBlock(nn.Module):
    """Convolutions whose output is added to the input, itself projected where shapes differ."""

    def __init__(self, inputs: int, channels: int, stride: int, *, bottleneck: bool) -> None:
        super().__init__()
        outputs = channels * 4 if bottleneck else channels
        last = nn.BatchNorm2d(outputs)
        # Starting from the identity makes deep networks learn from the first step on.
        nn.init.zeros_(last.weight)
        # Inputs, outputs, size and stride of each.
        shapes = (
            [(inputs, channels, 1, 1), (channels, channels, 3, stride), (channels, outputs, 1, 1)]
            if bottleneck
            else [(inputs, channels, 3, stride), (channels, channels, 3, 1)]
        )
        layers: list[nn.Module] = []
        for shape in shapes[:-1]:
            layers += [_convolution(*shape), nn.BatchNorm2d(shape[1]), nn.ReLU()]
        self.convolutions = nn.Sequential(*layers, _convolution(*shapes[-1]), last)
        same = stride == 1 and inputs == outputs
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(_convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
        )

    def forward(self, x: Tensor) -> Tensor:
        """``[samples, inputs, height, width]`` to ``[samples, outputs, height', width']``."""
        return functional.relu(self.convolutions(x) + self.shortcut(x))


class ResNet(Classification):
    """ResNet-18 or ResNet-50: 11,689,512 or 25,557,032 parameters for 1,000 classes."""

    def __init__(
        self,
        depth: Literal[18, 50],
        classes: Annotated[int, Field(ge=2)] = 1000,
        image_size: Annotated[int, Field(ge=32)] = 224,
    ) -> None:
        super().__init__()
        self.classes = classes
        self.image_size = image_size
        bottleneck = depth >= 50
        self.stem = nn.Sequential(
            _convolution(3, 64, 7, 2),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        blocks: list[nn.Module] = []
        inputs = 64
        for stage, (count, channels) in enumerate(
            zip(_STAGES[depth], _STAGE_CHANNELS, strict=True)
        ):
            for i in range(count):
                stride = 2 if stage > 0 and i == 0 else 1
                blocks.append(ResidualBlock(inputs, channels, stride, bottleneck=bottleneck))
                inputs = channels * 4 if bottleneck else channels
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Images ``[samples, 3, height, width]`` to logits ``[samples, classes]``."""
        output: Tensor = self.head(self.blocks(self.stem(x)).mean(dim=(2, 3)))
        return output

    def flops_per_sample(self) -> float:
        """Every convolution is a product at each pixel it produces; the images need no gradient."""
        stem = self.stem[0]
        assert isinstance(stem, nn.Conv2d)
        size = _output_size(stem, self.image_size)
        total = size * size * linear_flops(3 * 49, 64, input_gradient=False)
        size = (size + 2 - 3) // 2 + 1  # the stem's pooling
        for block in self.blocks:
            assert isinstance(block, ResidualBlock)
            for path in (block.shortcut, block.convolutions):
                after = size
                for layer in path.children():
                    if isinstance(layer, nn.Conv2d):
                        after = _output_size(layer, after)
                        weights = layer.in_channels * layer.kernel_size[0] ** 2
                        total += after * after * linear_flops(weights, layer.out_channels)
            size = after
        return float(total + linear_flops(self.head.in_features, self.classes))

    def check_data(self, description: Mapping[str, Any]) -> None:
        """The images must have this model's size, and no more classes."""
        check_equal(self, description, "image_size")
        check_at_least(self, description, "classes")


def _convolution(inputs: int, outputs: int, size: int, stride: int) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


def _output_size(layer: nn.Conv2d, size: int) -> int:
    return (size + 2 * (layer.kernel_size[0] // 2) - layer.kernel_size[0]) // layer.stride[0] + 1
