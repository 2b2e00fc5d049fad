"""A training script as it is written for CUDA. Test data of tests/pure/test_lint_source.py; it is read, not run."""

import argparse
import os

import apex  # expect TPU012
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from flash_attn import flash_attn_func  # expect TPU012
from torch.cuda.amp import GradScaler, autocast
from torch.utils.data import DataLoader

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"  # expect TPU013
torch.backends.cudnn.benchmark = True  # expect TPU013
torch.backends.cuda.matmul.allow_tf32 = True  # expect TPU013


class Attention(nn.Module):
    def __init__(self, width, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x, mask):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        if mask.sum() > 0:  # expect TPU003
            x = x.masked_fill(mask, 0.0)
        bias = torch.tensor([0.0, 1.0], device=x.device)  # expect TPU006
        kept = x[mask > 0]  # expect TPU005
        padding = torch.zeros(4).to(x.device)  # expect TPU007
        return flash_attn_func(q, k, v) * self.scale + bias.sum() + kept.sum() + padding.sum()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50304, 768)
        self.attention = nn.MultiheadAttention(768, 12)  # expect TPU040
        self.head = nn.Linear(768, 50304)

    def forward(self, tokens):
        x = self.embed(tokens)
        lengths = (tokens != 0).long().sum(-1)  # expect TPU031
        x = x.double() * lengths.max().item()  # expect TPU001 TPU030
        return self.head(x.float())


def train(args):
    dist.init_process_group(backend="nccl")  # expect TPU014
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # expect TPU011
    torch.cuda.set_device(args.local_rank)  # expect TPU010
    model = nn.DataParallel(Model().cuda())  # expect TPU010 TPU010
    optimizer = apex.optimizers.FusedAdam(model.parameters())
    scaler = GradScaler()  # expect TPU015
    loader = DataLoader(range(10), batch_size=2)
    for epoch in range(args.epochs):
        total, correct = 0.0, 0
        for step, (tokens, targets) in enumerate(loader):
            tokens, targets = tokens.to(device), targets.cuda(non_blocking=True)  # expect TPU010
            with autocast(dtype=torch.float16):  # expect TPU010 TPU015
                loss = F.cross_entropy(model(tokens), targets)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            optimizer.zero_grad()
            total += loss.item()  # expect TPU001
            correct += int((model(tokens).argmax(-1) == targets).sum())  # expect TPU001
            if torch.isnan(loss):  # expect TPU003
                raise RuntimeError(f"the loss is {loss.item()}")
            print(f"step {step}: {loss}")  # expect TPU002
            if step % 100 == 0:
                print(f"step {step}: {loss.item()}")
        print(f"epoch {epoch}: {total / len(loader)}, {loss.item()}")
    torch.cuda.synchronize()  # expect TPU010


@torch.no_grad()
def generate(model, tokens, num_tokens):
    for _ in range(num_tokens):
        logits = F.softmax(model(tokens)[:, -1], dim=-1)
        token = torch.multinomial(logits, 1)
        tokens = torch.cat([tokens, token], dim=1)  # expect TPU004
        if (token == 0).all():  # expect TPU003
            break
        print(token.item())  # expect TPU001
    return tokens


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda:0", choices=["cuda", "cpu"])  # expect TPU011
    train(parser.parse_args())
