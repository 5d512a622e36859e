"""Models of images: VGG, ResNet, ConvNeXt, ViT, MLP-Mixer, a diffusion U-Net and DiT."""

from parenvs.datasets.models.vision.convnext import convnext
from parenvs.datasets.models.vision.dit import dit
from parenvs.datasets.models.vision.mixer import mixer
from parenvs.datasets.models.vision.resnet import resnet
from parenvs.datasets.models.vision.unet import unet
from parenvs.datasets.models.vision.vgg import vgg
from parenvs.datasets.models.vision.vit import vit

__all__ = ["convnext", "dit", "mixer", "resnet", "unet", "vgg", "vit"]
