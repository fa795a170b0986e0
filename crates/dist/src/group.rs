//! A group: ranks that agreed at start, and take the same turns from then on.
//!
//! Every message begins with the turn, the purpose of the exchange, and digests of the step that the sender
//! is in. So ranks that were asked for different things get an error that says so, instead of taking each
//! other's bytes for something else.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::digest::{HEADER_BYTES, StepDigest, StepPart};
use crate::planner::PlannerConfig;
use crate::transport::{Bounds, Transport};
use crate::words::{bytes_of, words_of};
use gumball_spec::{Error, RanksError, Result};

/// What an exchange is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum What {
    /// What ranks were started with.
    Parameters,
    /// Whether ranks have done work of their own that no other rank waits for.
    Ready,
    /// How devices reach each other's memory.
    Windows,
    /// Nothing but the digest of a step that went wrong on devices.
    Step,
    /// What ranks have of a part of a step in which they differ.
    Difference,
    /// Logits, on the way to the ranks that sample their rows.
    Logits,
    /// The results of rows, on the way to the other ranks.
    Outputs,
    /// The largest logit of each row in each part of the vocabulary, and of tiles that a border cuts.
    RowMaxima,
    /// The best token of each row in each part of the vocabulary.
    Winners,
    /// The first tokens of rows in each part of the vocabulary.
    Lists,
    /// The maxima of all tiles of rows.
    TileMaxima,
    /// Queries of owners about their rows.
    Queries,
    /// The responses of all ranks.
    Responses,
}

/// How much was exchanged for something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The number of exchanges.
    pub exchanges: u64,
    /// The bytes that this rank sent to others, headers not counted, which are [`HEADER_BYTES`] a message.
    pub sent_bytes: u64,
    /// The bytes that it received from others.
    pub received_bytes: u64,
}

/// The most bytes that the parameters of a rank may have, unless this rank's own parameters have more.
const MOST_PARAMETERS: usize = 1 << 16;

/// The most bytes in which a rank tells a part of a step.
const MOST_TOLD: usize = 1 << 20;

/// How long ranks that differ are waited for to tell in what.
const TOLD: Duration = Duration::from_secs(1);

/// How often ranks tell each other that they are at work which no exchange waits for.
const AT_WORK: Duration = Duration::from_millis(250);

/// The version of the definition: ranks of different versions may draw different tokens.
const DEFINITION: &str = env!("CARGO_PKG_VERSION");

/// Ranks that agreed on vocabulary and settings, connected by a transport.
#[derive(Debug)]
pub struct Group {
    transport: Arc<Mutex<Box<dyn Transport>>>,
    rank: usize,
    name: &'static str,
    timeout: Duration,
    turn: Arc<AtomicU32>,
    digest: StepDigest,
    /// How much longer the exchanges of this step may wait for other ranks.
    left: Duration,
    broken: Option<Error>,
    traffic: BTreeMap<What, Traffic>,
    /// The messages of the last exchange, by rank. The memory is kept, since that of many rows takes longer
    /// to get than to fill.
    send: Vec<Vec<u8>>,
    receive: Vec<Vec<u8>>,
}

/// By which another thread looks after the ranks of a group.
#[derive(Clone, Debug)]
pub struct Lookout {
    transport: Arc<Mutex<Box<dyn Transport>>>,
    turn: Arc<AtomicU32>,
}

impl Lookout {
    /// Looks after the other ranks between exchanges, without a wait; during one it sees nothing. `due`: what
    /// the next exchange is for, in which they may wait for this rank.
    ///
    /// # Errors
    /// - [`RanksError::Lost`] if a rank has ended, or begun an exchange that is not due.
    pub fn watch(&self, due: Option<What>) -> Result<()> {
        let Ok(mut transport) = self.transport.try_lock() else { return Ok(()) };
        let (turn, due) = (self.turn.load(Ordering::Relaxed), due.map(|what| what as u32));
        transport.watch(&|message| {
            due.is_some() && Header::of(message).is_none_or(|it| it.turn == turn && Some(it.what) == due)
        })
    }

    /// Says to the other ranks that this one writes no memory of theirs any more, as [`Transport::leave`]
    /// does; nothing is exchanged afterwards.
    #[must_use]
    pub fn leave(&self) -> Option<bool> {
        self.transport.lock().unwrap_or_else(PoisonError::into_inner).leave()
    }
}

impl Group {
    /// Joins the group of a transport, once all its ranks have come: their settings must be the
    /// same. `parameters` are names and values besides the ones in `config`.
    ///
    /// # Errors
    /// - [`RanksError::Disagree`] with what differs first, on all ranks that see it.
    /// - [`Error::OutOfRange`] if the split is for another number of ranks.
    /// - The errors of [`Transport::all_to_all`].
    pub fn join(
        transport: Box<dyn Transport>,
        config: &PlannerConfig,
        parameters: &[(&'static str, String)],
    ) -> Result<Self> {
        let world = transport.world();
        if config.split.world() != world {
            let allowed = format!("{world} parts, one for each rank");
            return Err(Error::length("split", config.split.world(), allowed));
        }
        let (rank, name, timeout) = (transport.rank(), transport.name(), transport.timeout());
        let messages = vec![Vec::new(); world];
        let mut group = Self {
            transport: Arc::new(Mutex::new(transport)),
            rank,
            name,
            timeout,
            turn: Arc::default(),
            digest: StepDigest::default(),
            left: timeout,
            broken: None,
            traffic: BTreeMap::new(),
            send: messages.clone(),
            receive: messages,
        };
        let PlannerConfig { split, ownership, layouts, costs, logit_bytes, forced } = config;
        let mut ours = vec![
            ("definition", DEFINITION.to_owned()),
            ("world", world.to_string()),
            ("vocab", split.vocab().to_string()),
            ("split", format!("{:?}", split.borders())),
            ("ownership", format!("{ownership:?}")),
            ("layouts", format!("{layouts:?}")),
            ("layout", format!("{forced:?}")),
            ("costs", format!("{costs:?}")),
            ("logit_bytes", logit_bytes.to_string()),
        ];
        ours.extend_from_slice(parameters);
        let text: Vec<String> = ours.iter().map(|(name, value)| format!("{name}\0{value}")).collect();
        let text = text.join("\n");
        let most = text.len().max(MOST_PARAMETERS);
        let all = group.all_gather(What::Parameters, text.as_bytes(), |_| most)?;
        for (rank, theirs) in all.iter().enumerate() {
            let theirs = String::from_utf8_lossy(theirs);
            let theirs: Vec<(&str, &str)> =
                theirs.split('\n').filter_map(|line| line.split_once('\0')).collect();
            for (name, value) in &ours {
                let other =
                    theirs.iter().find(|(other, _)| other == name).map_or("nothing", |(_, value)| value);
                if other != value {
                    return Err(RanksError::disagree(rank, name, value, other).into());
                }
            }
        }
        Ok(group)
    }

    /// Returns this rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn world(&self) -> usize {
        self.send.len()
    }

    /// Returns the name of the transport.
    #[must_use]
    pub fn transport(&self) -> &'static str {
        self.name
    }

    /// Returns what was exchanged since the group was joined.
    #[must_use]
    pub fn traffic(&self) -> &BTreeMap<What, Traffic> {
        &self.traffic
    }

    /// Begins a step that all ranks must have alike. Its exchanges wait for other ranks for the transport's
    /// timeout in all.
    pub fn begin(&mut self, digest: StepDigest) {
        (self.digest, self.left) = (digest, self.timeout);
    }

    /// Sends a message to each rank and returns the messages that came, by rank. `most_bytes`: the longest
    /// that a rank may send.
    ///
    /// # Errors
    /// - The errors of [`Transport::all_to_all`], and [`RanksError::Disagree`] if a rank is at another turn
    ///   or step.
    /// - [`RanksError::Broken`] after any of these: the group cannot be used again.
    pub fn all_to_all(
        &mut self,
        what: What,
        messages: &[Vec<u8>],
        most_bytes: impl Fn(usize) -> usize,
    ) -> Result<Vec<Vec<u8>>> {
        assert_eq!(messages.len(), self.world(), "a message for each rank");
        self.exchange(what, |rank, message| message.extend_from_slice(&messages[rank]), most_bytes)?;
        Ok((0..messages.len()).map(|rank| self.received(rank).to_vec()).collect())
    }

    /// Sends each rank, this one too, the message that `write` appends for it; [`Group::received`] returns
    /// the ones that came. Each copy of long messages that this saves shows in the time of a step.
    ///
    /// # Errors
    /// The errors of [`Group::all_to_all`].
    pub fn exchange(
        &mut self,
        what: What,
        write: impl FnMut(usize, &mut Vec<u8>),
        most_bytes: impl Fn(usize) -> usize,
    ) -> Result<()> {
        if let Some(error) = &self.broken {
            return Err(RanksError::Broken(Box::new(error.clone())).into());
        }
        let most_bytes: Vec<usize> = (0..self.world()).map(|rank| HEADER_BYTES + most_bytes(rank)).collect();
        let result = self.move_messages(what, write, &most_bytes);
        if let Err(error) = &result {
            self.broken = Some(error.clone());
        }
        result
    }

    /// Returns the message of a rank in the last exchange, which succeeded.
    #[must_use]
    pub fn received(&self, rank: usize) -> &[u8] {
        &self.receive[rank][HEADER_BYTES..]
    }

    /// Sends the same message to all ranks and returns the messages that came, by rank.
    ///
    /// # Errors
    /// The errors of [`Group::all_to_all`].
    pub fn all_gather(
        &mut self,
        what: What,
        message: &[u8],
        most_bytes: impl Fn(usize) -> usize,
    ) -> Result<Vec<Vec<u8>>> {
        self.all_to_all(what, &vec![message.to_vec(); self.world()], most_bytes)
    }

    /// Does work on a thread of its own, and returns its result once all ranks have done theirs, however long
    /// one takes: ranks tell each other again and again that they are at it. After an error the thread goes
    /// on.
    ///
    /// # Errors
    /// The errors of [`Group::all_to_all`].
    ///
    /// # Panics
    /// If the work does; to the other ranks this one is lost then.
    pub fn work_apart<T: Send + 'static>(&mut self, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let (done, result) = mpsc::sync_channel(1);
        // A receiver that has gone wants no result.
        thread::spawn(move || done.send(work()).is_ok());
        let mut own = None;
        loop {
            if own.is_none() {
                own = match result.recv_timeout(AT_WORK.min(self.timeout / 4)) {
                    // Without this the ranks would wait for the work, and exchange messages, for ever.
                    Err(mpsc::RecvTimeoutError::Disconnected) => panic!("the work panicked"),
                    done => done.ok(),
                };
            }
            self.begin(StepDigest::default());
            let all = self.all_gather(What::Ready, &[u8::from(own.is_some())], |_| 1)?;
            if all.iter().all(|is_done| is_done == &[1])
                && let Some(own) = own
            {
                return Ok(own);
            }
        }
    }

    /// Returns by which another thread looks after the ranks.
    #[must_use]
    pub fn lookout(&self) -> Lookout {
        Lookout { transport: Arc::clone(&self.transport), turn: Arc::clone(&self.turn) }
    }

    /// Asks the program whether it wants to wait on.
    ///
    /// # Errors
    /// - [`RanksError::Interrupted`] if it does not.
    pub fn ask(&mut self) -> Result<()> {
        self.lock().ask()
    }

    /// Lets the exchanges until [`Group::begin`] wait for other ranks for `patience` in all, and no longer
    /// than they would.
    pub fn hurry(&mut self, patience: Duration) {
        self.left = self.left.min(patience);
    }

    fn lock(&self) -> MutexGuard<'_, Box<dyn Transport>> {
        self.transport.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compares the digest of a step with the other ranks, after an exchange between devices has failed.
    /// Ranks that have seen the failure make this call; it waits for `patience` at most.
    ///
    /// # Errors
    /// The errors of [`Group::all_to_all`], such as [`RanksError::Disagree`] with the part of the step. The
    /// group may be used again, to end it.
    pub fn compare(&mut self, digest: StepDigest, patience: Duration) -> Result<()> {
        self.begin(digest);
        self.hurry(patience);
        let most_bytes = vec![HEADER_BYTES; self.world()];
        self.move_messages(What::Step, |_, _| {}, &most_bytes)
    }

    /// Returns the error of a step with the values in which the ranks differ, if it is
    /// [`RanksError::Disagree`] about a part of the step: the ranks whose headers differ tell each other.
    /// `tell` returns this rank's lines of a part. Any other error is returned as it is.
    pub fn explain(&mut self, error: Error, tell: impl Fn(StepPart) -> Vec<String>) -> Error {
        let Some(RanksError::Disagree { rank, .. }) = error.of_ranks() else { return error };
        let (own, rank) = (self.header(What::Difference), *rank);
        let part = |theirs: &Vec<u8>| own.part_that_differs(&Header::of(theirs)?);
        let parts: Vec<Option<StepPart>> = self.receive.iter().map(part).collect();
        let Some(Some(_)) = parts.get(rank) else { return error };
        let lines: Vec<Vec<String>> = parts.iter().map(|part| part.map_or_else(Vec::new, &tell)).collect();
        let message = |lines: &Vec<String>| {
            let mut text = lines.join("\n");
            text.truncate(text.floor_char_boundary(MOST_TOLD));
            [own.bytes(), text.into_bytes()].concat()
        };
        let messages: Vec<Vec<u8>> = lines.iter().map(message).collect();
        let views: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
        let most_bytes = vec![HEADER_BYTES + MOST_TOLD; self.world()];
        let bounds = Bounds { patience: TOLD.min(self.timeout), most_bytes: &most_bytes };
        let mut transport = self.transport.lock().unwrap_or_else(PoisonError::into_inner);
        let told = transport.all_to_all(&views, &mut self.receive, bounds);
        drop(transport);
        let theirs =
            self.receive.get(rank).and_then(|message| Some((Header::of(message)?, &message[HEADER_BYTES..])));
        let (Ok(()), Some((header, theirs))) = (told, theirs) else { return error };
        if (header.turn, header.what) != (own.turn, own.what) {
            return error;
        }
        let (ours, theirs) = (&lines[rank], String::from_utf8_lossy(theirs));
        let theirs: Vec<&str> = theirs.lines().collect();
        let differs = |place: &usize| ours.get(*place).map(String::as_str) != theirs.get(*place).copied();
        let Some(place) = (0..ours.len().max(theirs.len())).find(differs) else { return error };
        let line = |line: Option<&str>| line.unwrap_or("nothing").to_owned();
        let what = parts[rank].expect("checked").name();
        let (ours, theirs) = (line(ours.get(place).map(String::as_str)), line(theirs.get(place).copied()));
        let error = Error::from(RanksError::disagree(rank, what, ours, theirs));
        if self.broken.is_some() {
            self.broken = Some(error.clone());
        }
        error
    }

    fn header(&self, what: What) -> Header {
        Header { turn: self.turn.load(Ordering::Relaxed), what: what as u32, parts: self.digest.parts() }
    }

    /// Notes that a rank sent what none sends, and returns the error.
    pub fn corrupt(&mut self, rank: usize, what: impl Into<String>) -> Error {
        let error = Error::from(RanksError::Corrupt { rank, what: what.into() });
        self.broken.get_or_insert_with(|| error.clone());
        error
    }

    fn move_messages(
        &mut self,
        what: What,
        mut write: impl FnMut(usize, &mut Vec<u8>),
        most_bytes: &[usize],
    ) -> Result<()> {
        let (own, world) = (self.rank(), self.world());
        let header = self.header(what);
        for (rank, message) in self.send.iter_mut().enumerate() {
            message.clear();
            message.extend_from_slice(&header.bytes());
            write(rank, message);
        }
        // After an error it must not be taken for a message of this exchange.
        self.receive.iter_mut().for_each(Vec::clear);
        let views: Vec<&[u8]> = self.send.iter().map(Vec::as_slice).collect();
        let since = Instant::now();
        let bounds = Bounds { patience: self.left, most_bytes };
        let mut transport = self.transport.lock().unwrap_or_else(PoisonError::into_inner);
        let exchanged = transport.all_to_all(&views, &mut self.receive, bounds);
        drop(transport);
        self.left = self.left.saturating_sub(since.elapsed());
        if let Err(error) = exchanged {
            // A rank that is at another step may have gone, or sent a message that would be too long for this
            // one.
            let theirs = error
                .of_ranks()
                .and_then(RanksError::rank)
                .and_then(|rank| Some((rank, Header::of(&self.receive[rank])?)));
            return Err(theirs.and_then(|(rank, theirs)| header.differs(rank, &theirs)).unwrap_or(error));
        }
        let traffic = self.traffic.entry(what).or_default();
        traffic.exchanges += 1;
        for rank in (0..world).filter(|rank| *rank != own) {
            let message = &self.receive[rank];
            let Some(theirs) = Header::of(message) else {
                let what = format!("{} bytes where a header was due", message.len());
                return Err(RanksError::Corrupt { rank, what }.into());
            };
            header.differs(rank, &theirs).map_or(Ok(()), Err)?;
            traffic.sent_bytes += (self.send[rank].len() - HEADER_BYTES) as u64;
            traffic.received_bytes += (message.len() - HEADER_BYTES) as u64;
        }
        self.turn.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// What stands in front of a message.
struct Header {
    turn: u32,
    what: u32,
    parts: [u32; StepPart::ALL.len()],
}

impl Header {
    fn bytes(&self) -> Vec<u8> {
        bytes_of(&[&[self.turn, self.what], &self.parts[..]].concat())
    }

    fn of(message: &[u8]) -> Option<Self> {
        let words = words_of(message.get(..HEADER_BYTES)?);
        let parts = words[2..].try_into().expect("as many words as a header has");
        Some(Self { turn: words[0], what: words[1], parts })
    }

    /// Returns the first part of the step in which two ranks of the same turn differ.
    fn part_that_differs(&self, theirs: &Self) -> Option<StepPart> {
        let differs = |part: &StepPart| self.parts[*part as usize] != theirs.parts[*part as usize];
        StepPart::ALL.into_iter().find(differs).filter(|_| self.turn == theirs.turn)
    }

    /// Returns the error of a rank whose message has another header.
    fn differs(&self, rank: usize, theirs: &Self) -> Option<Error> {
        if theirs.what == What::Windows as u32 && self.what != What::Windows as u32 {
            return Some(RanksError::Lost { rank, reason: "it has closed its pool".to_owned() }.into());
        }
        if self.turn != theirs.turn {
            return Some(RanksError::disagree(rank, "the turn", self.turn, theirs.turn).into());
        }
        if let Some(part) = self.part_that_differs(theirs) {
            let told = |header: &Self| format!("digest {:08x}", header.parts[part as usize]);
            return Some(RanksError::disagree(rank, part.name(), told(self), told(theirs)).into());
        }
        (self.what != theirs.what)
            .then(|| RanksError::disagree(rank, "the exchange", self.what, theirs.what).into())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::share::VocabSplit;
    use crate::transport::threads;

    /// Joins two ranks, each with its own configuration and parameters, and works with them.
    fn two<T: Send>(
        configs: [PlannerConfig; 2],
        parameters: [&[(&'static str, String)]; 2],
        work: impl Fn(Result<Group>) -> T + Sync,
    ) -> Vec<T> {
        let work = &work;
        std::thread::scope(|scope| {
            let ranks = threads(2, Duration::from_secs(20)).into_iter().zip(configs).zip(parameters);
            let ranks: Vec<_> = ranks
                .map(|((rank, config), parameters)| {
                    scope.spawn(move || work(Group::join(Box::new(rank), &config, parameters)))
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    fn config(sizes: [usize; 2]) -> PlannerConfig {
        PlannerConfig::new(VocabSplit::of_sizes(&sizes).unwrap())
    }

    #[test]
    fn work_that_takes_longer_than_the_timeout_is_waited_for_unless_its_rank_ends() {
        let ends = |fails: bool| {
            two([config([5, 5]), config([5, 5])], [&[], &[]], move |group| {
                let mut group = group.unwrap();
                group.timeout = Duration::from_millis(200);
                if fails && group.rank() == 1 {
                    return Ok(1);
                }
                let takes = Duration::from_millis(900 * group.rank() as u64);
                group.work_apart(move || thread::sleep(takes)).map(|()| 0)
            })
        };
        assert_eq!(ends(false), [Ok(0), Ok(0)]);
        assert!(matches!(
            ends(true)[0].as_ref().unwrap_err().of_ranks(),
            Some(RanksError::Lost { rank: 1, .. })
        ));
    }

    #[test]
    fn ranks_that_disagree_are_told_so_at_start() {
        let said = |a, b, more: [&[(&'static str, String)]; 2]| {
            two([a, b], more, |group| group.unwrap_err().to_string())
        };
        assert_eq!(
            said(config([5, 5]), config([5, 6]), [&[], &[]]),
            [
                "rank 1 disagrees on vocab: it has 11, this rank 10",
                "rank 0 disagrees on vocab: it has 10, this rank 11"
            ]
        );
        assert_eq!(
            said(config([5, 5]), config([4, 6]), [&[], &[]])[0],
            "rank 1 disagrees on split: it has [0, 4, 10], this rank [0, 5, 10]"
        );
        let route = |name: &str| [("route", name.to_owned())];
        assert_eq!(
            said(config([5, 5]), config([5, 5]), [&route("race"), &route("oracle")])[0],
            "rank 1 disagrees on route: it has oracle, this rank race"
        );
        let rank = threads(1, Duration::from_secs(1)).pop().unwrap();
        let error = Group::join(Box::new(rank), &config([5, 5]), &[]).unwrap_err();
        assert_eq!(error.to_string(), "split has length 2, but must have 1 parts, one for each rank");
    }

    #[test]
    fn ranks_at_different_steps_are_told_so_and_go_no_further() {
        let configs = [config([5, 5]), config([5, 5])];
        two(configs, [&[], &[]], |group| {
            let mut group = group.unwrap();
            let of = |word: u64| {
                let mut digest = StepDigest::default();
                digest.add(StepPart::Slots, 7);
                digest.add(StepPart::Masks, word);
                digest
            };
            group.begin(of(7));
            assert_eq!(group.all_gather(What::Outputs, &[group.rank() as u8], |_| 1).unwrap(), [[0], [1]]);
            group.begin(of(group.rank() as u64));
            // That what they exchange is longer than it may be is no matter then.
            let error = group.all_gather(What::Outputs, &[0; 9], |_| 0).unwrap_err();
            let told = error.of_ranks();
            assert!(
                matches!(told, Some(RanksError::Disagree { what: "the masks of the step", .. })),
                "{error}"
            );
            let again = group.all_gather(What::Outputs, &[], |_| 0).unwrap_err();
            assert_eq!(again, Error::from(RanksError::Broken(Box::new(error))));
        });
    }

    #[test]
    fn bytes_are_counted_by_what_they_are_for() {
        two([config([5, 5]), config([5, 5])], [&[], &[]], |group| {
            let mut group = group.unwrap();
            let messages = [vec![0; 3], vec![0; 5]];
            group.all_to_all(What::Winners, &messages, |_| 5).unwrap();
            let (sent_bytes, received_bytes) = if group.rank() == 0 { (5, 3) } else { (3, 5) };
            let traffic = Traffic { exchanges: 1, sent_bytes, received_bytes };
            assert_eq!(group.traffic().keys().collect::<Vec<_>>(), [&What::Parameters, &What::Winners]);
            assert_eq!(group.traffic()[&What::Winners], traffic);
        });
    }
}
