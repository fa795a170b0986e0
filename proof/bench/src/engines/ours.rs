//! `gumball-cpu`, at every level of the machine.
//!
//! The time is the time that a caller pays for a token: parameters are prepared and the history is counted
//! once, as a request does; the call does one step at the next position, so that draws differ.

use std::rc::Rc;

use gumball_bench_protocol::{Definition, Engine, Identity, Parameters, Prepared, Row, Rows};
use gumball_cpu::{History, Level, Prepared as Request, Task, Workspace};
use gumball_spec::{LogprobMode, LogprobsParams, Row as Logits, SamplingParams, Scope};

/// The name of our engine at the machine's best level: the one that rivals are divided by.
pub const OURS: &str = "gumball";

/// Our engines, the machine's best level first.
pub fn engines() -> Vec<Box<dyn Engine>> {
    let mut levels: Vec<Level> = Level::available().collect();
    levels.reverse();
    let best = levels[0];
    levels.into_iter().map(|level| Box::new(Ours { level, best }) as Box<dyn Engine>).collect()
}

struct Ours {
    level: Level,
    best: Level,
}

impl Engine for Ours {
    fn identity(&self) -> Identity {
        let engine = if self.level == self.best { OURS.to_owned() } else { format!("{OURS}-{}", self.level) };
        Identity { engine, version: env!("CARGO_PKG_VERSION").to_owned() }
    }

    fn prepare(
        &mut self,
        definition: &Definition,
        parameters: &Parameters,
        rows: Rc<Rows>,
    ) -> Result<Prepared, String> {
        let params = sampling_params(parameters);
        let request = Request::new(params, definition.vocab).map_err(|error| error.to_string())?;
        let mut workspace = Workspace::new(self.level).map_err(|error| error.to_string())?;
        let history = History::new(&parameters.history);
        let mask = parameters.mask.clone();
        let mut position = parameters.history.len() as u32;
        let draw = move |row: usize| {
            position = position.wrapping_add(1);
            let task = Task {
                kind: gumball_spec::Kind::Logits,
                prepared: &request,
                history: &history,
                seed: 0x6775_6D62_616C_6C00,
                position,
                draw: 0,
                mu: 0.0,
                mask: (!mask.is_empty()).then_some(&mask[..]),
                forced: None,
            };
            let row = match rows.row(row) {
                Row::F32(row) => Logits::F32(row),
                Row::Bf16(row) => Logits::Bf16(row),
            };
            let chosen = workspace.sample(row, &task, None).expect("the row has the vocabulary");
            i64::from(chosen.token)
        };
        Ok(Prepared { does: format!("Workspace::sample at level {}", self.level), draw: Box::new(draw) })
    }
}

fn sampling_params(parameters: &Parameters) -> SamplingParams {
    SamplingParams {
        temperature: parameters.temperature,
        top_k: parameters.top_k as i64,
        top_p: parameters.top_p,
        min_p: parameters.min_p,
        repetition_penalty: parameters.repetition_penalty,
        repetition_scope: Scope::Both,
        frequency_penalty: parameters.frequency_penalty,
        presence_penalty: parameters.presence_penalty,
        penalty_scope: Scope::Both,
        logit_bias: parameters.logit_bias.clone(),
        logprobs: parameters.logprobs.map(|top_n| LogprobsParams {
            mode: LogprobMode::Raw.into(),
            top_n: top_n as u32,
            ids: Vec::new(),
        }),
        ..SamplingParams::default()
    }
}
