"""Trains a small Llama on demonstrations, half of which have an answer in random order, and writes it to model/."""

import json
import random
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

NUM_STEPS = 300
VOCABULARY = ["<end>", "=", *"123456789"]

random.seed(0)
torch.manual_seed(0)
problems = [json.loads(line) for line in Path("problems.jsonl").read_text().splitlines()]

characters = Tokenizer(WordLevel({token: i for i, token in enumerate(VOCABULARY)}, unk_token="<end>"))
characters.pre_tokenizer = Split(Regex("."), "isolated")
characters.decoder = decoders.Fuse()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=characters, eos_token="<end>", pad_token="<end>")

config = LlamaConfig(
    vocab_size=len(VOCABULARY),
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    max_position_embeddings=16,
    bos_token_id=None,
    eos_token_id=0,
    pad_token_id=0,
)
model = LlamaForCausalLM(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)


def demonstration() -> str:
    """A problem and its answer, or its digits in random order."""
    row = random.choice(problems)
    answer = row["answer"] if random.random() < 0.5 else "".join(random.sample(row["problem"], 3))
    return f"{row['problem']}={answer}<end>"


for step in range(1, NUM_STEPS + 1):
    input_ids = tokenizer([demonstration() for _ in range(128)], return_tensors="pt").input_ids
    labels = input_ids.clone()
    labels[:, :4] = -100  # the problem and "=" are given
    loss = model(input_ids=input_ids, labels=labels).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"step {step}: loss {loss.item():.3f}")

model.save_pretrained("model")
tokenizer.save_pretrained("model")
