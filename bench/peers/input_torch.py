"""Reading images with PyTorch's DataLoader and torchvision: `input_torch.py images FOLDER SECONDS`, see README.md."""

import pathlib
import sys

import reading  # sets the processors
import torch
from torch.utils.data import DataLoader, Dataset
from torchvision import io, transforms
from PIL import Image

STEPS = [transforms.RandomCrop(224), transforms.RandomHorizontalFlip()]
NORMAL = transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])


class Images(Dataset):
    def __init__(self, folder, with_pil):
        self.files = sorted(pathlib.Path(folder, "images").glob("*/*.jpg"))
        self.with_pil = with_pil
        convert = transforms.ToTensor() if with_pil else transforms.ConvertImageDtype(torch.float32)
        self.steps = transforms.Compose([*STEPS, convert, NORMAL])

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        path = self.files[i]
        image = Image.open(path).convert("RGB") if self.with_pil else io.read_image(str(path))
        return self.steps(image)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "images":
        for name, with_pil in ("PIL", True), ("torchvision.io", False):
            loader = DataLoader(Images(sys.argv[2], with_pil), batch_size=32, num_workers=2, persistent_workers=True)
            reading.report("DataLoader", torch.__version__, f"2 workers, {name}", loader, len)
