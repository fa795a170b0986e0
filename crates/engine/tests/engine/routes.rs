//! Routes stand beside each other by name.

use std::sync::Arc;

use gumball_engine::{
    Chosen, Error, Hook, Level, Logprobs, ORACLE, Pool, PoolConfig, RACE, Result, Route, Row, Sampler,
    SamplingParams, Stages, Status, Task, routes,
};

use crate::cases::{KINDS, VOCAB, params, row};

/// Always the last id: wrong, and easily told from the others.
#[derive(Debug)]
struct Last;

impl Route for Last {
    fn name(&self) -> &str {
        "last"
    }

    fn about(&self) -> &str {
        "the last id"
    }

    fn open(&self, _level: Level) -> Result<Box<dyn Stages>> {
        Ok(Box::new(Last))
    }
}

impl Stages for Last {
    fn sample(&mut self, row: Row<'_>, task: &Task<'_>, _hook: Option<Hook<'_>>) -> Result<Chosen> {
        let token = row.vocab() as i32 - 1;
        Ok(Chosen { token, status: Status::default(), mu: task.mu, temperature: 1.0 })
    }

    fn logprobs(&self) -> Option<&Logprobs> {
        None
    }

    fn keep_ids(&mut self, _on: bool) {}

    fn kept(&self) -> &[u32] {
        &[]
    }
}

#[test]
fn a_route_of_ones_own_stands_beside_the_default() {
    routes().register(Arc::new(Last)).unwrap();
    let mut sampler = Sampler::new(SamplingParams::default(), VOCAB).unwrap().with_route("last").unwrap();
    assert_eq!(sampler.sample(&row(1)).unwrap().id, Some(VOCAB as u32 - 1));
    assert_eq!(sampler.route(), "last");
    let pool = Pool::new(PoolConfig { route: "last".into(), ..PoolConfig::new(VOCAB) }).unwrap();
    assert_eq!(pool.route(), "last");
}

#[test]
fn an_unknown_route_is_an_error_that_lists_the_known() {
    let error = Pool::new(PoolConfig { route: "sort".into(), ..PoolConfig::new(VOCAB) }).unwrap_err();
    assert!(matches!(&error, Error::Unknown { name, known, .. }
        if name == "sort" && known.contains(RACE) && known.contains(ORACLE)));
}

#[test]
fn the_default_agrees_with_the_oracle() {
    for kind in 0..KINDS {
        let sampler = || Sampler::new(params(kind, 11), VOCAB).unwrap().with_prompt(&[3, 7, 3]);
        let (mut race, mut oracle) = (sampler(), sampler().with_route(ORACLE).unwrap());
        race.keep_ids(true);
        oracle.keep_ids(true);
        for step in 0..4 {
            assert_eq!(race.sample(&row(step)).unwrap(), oracle.sample(&row(step)).unwrap(), "{kind}");
            assert_eq!(race.logprobs(), oracle.logprobs());
            assert_eq!(race.kept(), oracle.kept());
        }
    }
}
