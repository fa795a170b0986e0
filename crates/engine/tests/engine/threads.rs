//! Threads: started when they are needed, as many as can be, and never more than a pool may have.

use gumball_engine::{Operators, Place, Pool, PoolConfig};

#[test]
fn a_number_of_threads_beyond_its_range_is_refused_before_one_is_started() {
    for threads in [0, 1025, 20_000, 1 << 40, usize::MAX] {
        let said = format!("threads is {threads}, but must be in 1..=1024");
        let config = PoolConfig { place: Place::threads(threads), ..PoolConfig::new(8) };
        assert_eq!(Pool::new(config).unwrap_err().to_string(), said);
        assert_eq!(Operators::new(None, Some(threads)).unwrap_err().to_string(), said);
    }
}
