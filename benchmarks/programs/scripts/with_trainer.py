"""A small BERT and the Trainer of Transformers; called with the number of steps."""

import sys
import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

config = BertConfig(
    vocab_size=500,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=128,
)
data = [
    {"input_ids": torch.randint(0, 500, (32,)), "labels": torch.tensor(one % 2)}
    for one in range(2000)
]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=int(sys.argv[1]),
        per_device_train_batch_size=8,
        report_to="none",
        save_strategy="no",
        logging_steps=100,
        use_cpu=True,
        disable_tqdm=True,
    )
    model = BertForSequenceClassification(config)
    Trainer(model=model, args=arguments, train_dataset=data).train()
