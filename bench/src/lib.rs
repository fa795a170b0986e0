//! Definitions, engines and records: how fast each way from logits to a token is.
