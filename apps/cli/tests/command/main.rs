//! Tests of the command: a file for each subcommand and for each part of its models, and the helpers that
//! these files share. Hostile inputs have a program of their own.

#[path = "../../../../bindings/c/tests/fragments/mod.rs"]
mod fragments;
mod head_model;
mod made;
mod support;
mod tiny;
mod wheel;

mod check;
mod device;
mod doctor;
mod documents;
mod explore;
mod fetch;
mod generate;
mod head;
mod head_on_device;
mod inspect;
mod kernels;
mod llama;
mod model;
mod receipt;
mod sample;
mod sampling;
mod shell;
mod speculate;
mod tokenizer;
mod watermark;
