"""Settings of augmentation: how a view is created, and which views a step has. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from effssl.augment.pixel_format import PixelFormat
from effssl.schema import Between, Count, NonNegative, Share

Area = Annotated[tuple[float, float], Between(1e-6, 1)]


@dataclass(frozen=True)
class Augment:
    """How one view is created from an image. Two values in `blur` or `solarize` mean: first view, second view."""

    scale: Area = (0.2, 1.0)
    """share of the image's area that a crop covers"""
    ratio: Annotated[tuple[float, float], Between(1e-3, 1e3)] = (0.75, 4 / 3)
    """width over height of a crop"""
    filter: Literal["bilinear", "bicubic"] = "bilinear"
    flip: Share = 0.5
    """probability of a horizontal flip"""
    jitter: Share = 0.8
    """probability of the color jitter"""
    brightness: NonNegative = 0.4
    contrast: NonNegative = 0.4
    saturation: NonNegative = 0.4
    hue: Annotated[float, Between(0, 0.5)] = 0.1
    gray: Share = 0.2
    """probability of conversion to grayscale"""
    blur: Annotated[tuple[float, ...], Between(0, 1)] = (0.0,)
    """probability of a Gaussian blur, for all views or per view"""
    blur_sigma: Annotated[tuple[float, float], Between(1e-3)] = (0.1, 2.0)
    blur_kernel: Count = 0
    """width of the blur kernel in pixels, odd; 0 is a tenth of the image size"""
    solarize: Annotated[tuple[float, ...], Between(0, 1)] = (0.0,)
    """probability of inverting bright pixels, for all views or per view"""
    solarize_threshold: Share = 0.5
    saliency: str = ""
    """file of saliency maps (effssl saliency); crops then cover more saliency than the image has on average"""
    saliency_share: Share = 1.0
    """share of samples whose crops are chosen by saliency"""
    saliency_by: Literal["sample", "crop", "image"] = "sample"
    """drawn for all views of a sample at once, for each crop, or once for each image"""
    pad: Count = 0
    """largest shift of the whole image over a black border in pixels, in place of a resized crop; 0 is off"""
    jitter_by: Literal["auto", "color", "channel"] = "auto"
    """color: brightness, contrast, saturation and hue of RGB; channel: brightness and contrast of each channel by
    itself, and no gray; auto is channel where there is no RGB"""
    channel_dropout: Share = 0.0
    """probability that a channel of a view is blank; one is always left"""
    pixels: PixelFormat = field(default_factory=PixelFormat)
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    """of each channel; computed on a sample of the images where they are no pictures (RGB of 8 bits)"""
    std: Annotated[tuple[float, ...], Between(1e-6)] = (0.229, 0.224, 0.225)

    @property
    def by_channel(self) -> bool:
        """Whether the jitter changes each channel by itself."""
        return self.jitter_by == "channel" or (self.jitter_by == "auto" and not self.pixels.is_color)


@dataclass(frozen=True)
class ViewGroup:
    """Views of one kind: how many, how large, which part of the image they show, and who reads them."""

    count: Count = 0
    """views per image; 0 leaves the group out"""
    size: Annotated[float, Between(1e-3)] = 1.0
    """side of a view: up to 1 as a share of the image size, above 1 in pixels"""
    scale: Annotated[tuple[float, float], Between(0, 1)] = (0.0, 0.0)
    """share of the image's area that a crop covers; 0 0 is augment.scale"""
    copy_of: Literal["", "large"] = ""
    """take the views of that group, resized, in place of crops of their own"""
    rotated: bool = False
    """rotate each view by an angle of `angles`, counter-clockwise"""
    angles: tuple[float, ...] = (0.0, 90.0, 180.0, 270.0)
    """the angle set; a view's label is the position of its angle in it"""
    every_angle: bool = False
    """each view at every angle of the set, in place of one angle at random"""
    upright: Share = 0.0
    """share of the rotated views that keep the first angle of the set, whatever was drawn"""
    online: bool = False
    """base methods learn from these views: a gradient goes through them"""
    target: bool = False
    """these views give the targets of base methods"""
    angle_embedding: bool = False
    """add a learned embedding of its angle to the projection of an online view, so that the base method need not be
    invariant to rotation"""
    joint_pass: bool = False
    """all views of the group go through the network in one pass and share batch norm statistics; else one pass each"""
    update_stats: bool = True
    """the views update the running statistics of batch norm"""

    def side(self, image_size: int) -> int:
        """Side of a view in pixels.

        >>> ViewGroup(size=0.5).side(32), ViewGroup(size=96).side(224)
        (16, 96)
        """
        return round(self.size * image_size) if self.size <= 1 else round(self.size)

    @property
    def views(self) -> int:
        """Views per image that come out of the group."""
        return self.count * (len(self.angles) if self.rotated and self.every_angle else 1)


@dataclass(frozen=True)
class ViewGroups:
    """The views of an image in a step. A group that no term of the objective reads is not created."""

    large: ViewGroup = ViewGroup(count=2, online=True, target=True)
    """the usual views; both online and targets"""
    target: ViewGroup = ViewGroup(target=True)
    """views that only give targets, without a gradient"""
    small: ViewGroup = ViewGroup(size=96.0, scale=(0.05, 0.14), online=True, joint_pass=True)
    """the small crops of multi-crop"""
    rotated: ViewGroup = ViewGroup(count=2, copy_of="large", rotated=True, joint_pass=True)
    """rotated views; by default the large views again, each at a random angle"""

    def named(self) -> dict[str, ViewGroup]:
        """The groups by name, in order."""
        return dict(vars(self))
