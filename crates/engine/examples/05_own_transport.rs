//! Ranks whose bytes travel by the program's own means: here TCP between two threads, elsewhere MPI, or what
//! a cluster has.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use gumball_engine::dist::{Bounds, PlannerConfig, Transport, VocabSplit};
use gumball_engine::{Batch, Outputs, Pool, PoolConfig, Ranks, RanksError, Result, Rows, SamplingParams};

const VOCAB: usize = 1000;
const TIMEOUT: Duration = Duration::from_secs(20);

/// This rank, and the connection to each other one. Nothing is encrypted, and no peer proves who it is.
#[derive(Debug)]
struct Tcp(usize, Vec<Option<TcpStream>>);

impl Transport for Tcp {
    fn rank(&self) -> usize {
        self.0
    }

    fn world(&self) -> usize {
        self.1.len()
    }

    fn name(&self) -> &'static str {
        "tcp"
    }

    fn timeout(&self) -> Duration {
        TIMEOUT
    }

    fn all_to_all(&mut self, send: &[&[u8]], receive: &mut [Vec<u8>], bounds: Bounds<'_>) -> Result<()> {
        receive[self.0] = send[self.0].to_vec();
        let end = Instant::now() + bounds.patience;
        let left = || Some(end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1)));
        let peers = || self.1.iter().enumerate().filter_map(|(rank, peer)| Some((rank, peer.as_ref()?)));
        std::thread::scope(|scope| {
            for (rank, mut peer) in peers() {
                // On threads, so that two ranks that send much do not wait for each other. What fails is seen
                // by who reads.
                scope.spawn(move || {
                    peer.set_write_timeout(left())?;
                    peer.write_all(&(send[rank].len() as u64).to_le_bytes())?;
                    peer.write_all(send[rank])
                });
            }
            peers().try_for_each(|(rank, mut peer)| {
                let lost = |error: std::io::Error| match error.kind() {
                    ErrorKind::WouldBlock => RanksError::Late { rank, waited: TIMEOUT },
                    _ => RanksError::Lost { rank, reason: error.to_string() },
                };
                let (mut length, most) = ([0; 8], bounds.most_bytes[rank]);
                peer.set_read_timeout(left()).and_then(|()| peer.read_exact(&mut length)).map_err(lost)?;
                let length = u64::from_le_bytes(length);
                // A message that is too long is read as far as the group needs it to say what differs.
                receive[rank] = vec![0; most.min(length as usize)];
                peer.read_exact(&mut receive[rank]).map_err(lost)?;
                let what = format!("{length} bytes where at most {most} were due");
                if length > most as u64 { Err(RanksError::Corrupt { rank, what }.into()) } else { Ok(()) }
            })
        })
    }

    fn watch(&mut self, _: &dyn Fn(&[u8]) -> bool) -> Result<()> {
        // For rows on devices only, whose waits would end here once a connection has ended.
        Ok(())
    }
}

/// Takes three steps on a rank that has its part of the logits; returns the tokens, which are the same on
/// all.
fn decode(transport: Tcp) -> Result<Vec<i32>> {
    let split = VocabSplit::even(VOCAB, transport.world())?;
    let ids = split.ids(transport.rank());
    let ranks = Ranks::new(PlannerConfig::new(split), Box::new(transport));
    let mut pool = Pool::over(PoolConfig::new(VOCAB), ranks)?;
    let slot = pool.admit(SamplingParams { seed: Some(7), ..Default::default() }, &[1])?;
    let (mut out, mut tokens) = (Outputs::new(), Vec::new());
    for step in 0..3 {
        let part: Vec<f32> = ids.clone().map(|id| (id * 37 % 101 + step) as f32 * 0.1).collect();
        pool.step(Rows::logits(&part, 1, part.len())?, &Batch::of(&[slot]), &mut out)?;
        tokens.extend_from_slice(out.tokens());
    }
    Ok(tokens)
}

/// Runs both ranks.
pub fn main() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let first = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
    let second = listener.accept().expect("it has connected").0;
    let other = std::thread::spawn(|| decode(Tcp(1, vec![Some(first), None])));
    let tokens = decode(Tcp(0, vec![None, Some(second)]))?;
    assert_eq!(tokens, other.join().expect("no panic")?);
    println!("the same on both ranks: {tokens:?}");
    Ok(())
}
