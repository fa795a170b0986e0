//! Ranks that are processes: this program starts itself again, once for each rank.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gumball_engine::dist::LogitsLayout::{Gather, Replicated, Survey, Swap};
use gumball_engine::dist::{Address, StepKind, TransportKind, choose};
use gumball_engine::{Batch, Error, Outputs, Pool, Slot};

use crate::batch::{Numbers, Requests, part};
use crate::cases::Dice;

const WORLD: usize = 3;
const STEPS: usize = 8;
const LAYOUTS: [gumball_engine::dist::LogitsLayout; 4] = [Gather, Swap, Survey, Replicated];

fn batch() -> Requests {
    let mut batch = Requests::of_vocab(&mut Dice(21, 0), WORLD, 6, 3000);
    (batch.kind, batch.dtype) = (gumball_engine::Kind::Logits, 1);
    batch
}

fn rows(batch: &Requests, step: usize) -> Vec<Vec<f32>> {
    batch.rows(&mut Dice(22 + step as u64, 0), batch.requests.len())
}

/// Returns the ids of all sequences after the same steps in one process.
fn alone() -> Vec<Vec<u32>> {
    let batch = batch();
    let (mut pool, slots) = batch.pool();
    for step in 0..STEPS {
        let values: Vec<f32> = rows(&batch, step).concat();
        let numbers = Numbers::new(batch.dtype, &values);
        let logits = numbers.logits(slots.len(), batch.vocab, batch.kind);
        pool.step(logits, &Batch::of(&slots), &mut Outputs::new()).unwrap();
    }
    slots.iter().map(|slot| pool.sequence(*slot).unwrap().history().ids().to_vec()).collect()
}

fn step(pool: &mut Pool, batch: &Requests, slots: &[Slot], step: usize) -> Result<(), Error> {
    let layout = LAYOUTS[step % LAYOUTS.len()];
    let shape = pool.shape(slots, 0, StepKind::Decode)?;
    let plan = pool.ranks().unwrap().planner.plan_as(layout, &shape);
    let own: Vec<usize> = plan.shares.of(pool.ranks().unwrap().group.rank()).collect();
    let whole = rows(batch, step);
    let part = part(layout, &batch.split, pool.ranks().unwrap().group.rank(), batch.dtype, &whole, &own);
    let logits = part.numbers.logits(part.rows, part.columns, batch.kind);
    pool.step(logits, &Batch { plan: Some(plan), ..Batch::of(slots) }, &mut Outputs::new())
}

/// The work of a process of its own as a rank; without the variables it is no rank, and does nothing.
#[test]
fn a_rank_of_its_own() {
    let variable = |name: &str| std::env::var(name).ok();
    let Some(rank) = variable("GUMBALL_TEST_RANK") else { return };
    let (own, folder) = (rank.parse().unwrap(), PathBuf::from(variable("GUMBALL_TEST_FOLDER").unwrap()));
    let addresses: Vec<Address> =
        (0..WORLD).map(|rank| Address::Unix(folder.join(format!("rank-{rank}")))).collect();
    let kind = TransportKind::of_environment(variable).unwrap();
    let timeout = Duration::from_secs(20);
    let transport = choose(kind, false, own, &addresses, timeout).unwrap();
    assert_eq!(transport.name(), "unix");
    let batch = batch();
    let (mut pool, slots) = batch.try_dist_pool(transport, batch.planner()).unwrap();
    for at in 0..STEPS {
        if let Err(error) = step(&mut pool, &batch, &slots, at) {
            std::fs::write(folder.join(format!("error-{own}")), error.to_string()).unwrap();
            return;
        }
        std::fs::write(folder.join(format!("step-{own}")), at.to_string()).unwrap();
        if variable("GUMBALL_TEST_STAYS").is_some_and(|step| step == at.to_string()) {
            // To be killed here.
            std::thread::sleep(Duration::from_secs(60));
        }
    }
    let ids: Vec<Vec<u32>> =
        slots.iter().map(|slot| pool.sequence(*slot).unwrap().history().ids().to_vec()).collect();
    std::fs::write(folder.join(format!("ids-{own}")), format!("{ids:?}")).unwrap();
}

/// Starts a rank.
fn start(rank: usize, folder: &Path, stays: Option<usize>) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "processes::a_rank_of_its_own", "--test-threads", "1"]);
    command.env("GUMBALL_TEST_RANK", rank.to_string()).env("GUMBALL_TEST_FOLDER", folder);
    command.env("GUMBALL_DIST_TRANSPORT", "unix");
    if let Some(step) = stays {
        command.env("GUMBALL_TEST_STAYS", step.to_string());
    }
    command.stdout(Stdio::null()).spawn().unwrap()
}

/// Makes a folder of its own for sockets and answers, whose name is short enough for a socket.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("gumball-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn processes_come_to_what_one_process_comes_to() {
    let folder = folder("ranks");
    let ranks: Vec<Child> = (0..WORLD).map(|rank| start(rank, &folder, None)).collect();
    for mut rank in ranks {
        assert!(rank.wait().unwrap().success());
    }
    let want = format!("{:?}", alone());
    for rank in 0..WORLD {
        let error = std::fs::read_to_string(folder.join(format!("error-{rank}"))).unwrap_or_default();
        let ids = std::fs::read_to_string(folder.join(format!("ids-{rank}"))).unwrap_or(error);
        assert_eq!(ids, want, "rank {rank}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_process_that_is_killed_is_lost_to_the_others() {
    let folder = folder("killed");
    let mut ranks: Vec<Child> =
        (0..WORLD).map(|rank| start(rank, &folder, (rank == 1).then_some(2))).collect();
    let since = Instant::now();
    while std::fs::read_to_string(folder.join("step-1")).ok().as_deref() != Some("2") {
        assert!(since.elapsed() < Duration::from_secs(60), "the rank to be killed does not get there");
        std::thread::sleep(Duration::from_millis(5));
    }
    ranks[1].kill().unwrap();
    let killed = Instant::now();
    for rank in &mut ranks {
        rank.wait().unwrap();
    }
    // No timeout has to pass: the connection ends with the process.
    assert!(killed.elapsed() < Duration::from_secs(15));
    for rank in [0, 2] {
        let error = std::fs::read_to_string(folder.join(format!("error-{rank}"))).unwrap();
        assert!(error.contains("is gone"), "{error}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}
