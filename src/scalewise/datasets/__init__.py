"""The data: built alike on every rank, handed out in whole batches."""
