//! Kept sets over the devices of ranks: each rank has the sets of the rows that it samples, and hosts
//! exchange them when they fetch.

use gumball_dist::{LogitsLayout, What, bytes_of, words_of};
use gumball_spec::Result;

use super::{GpuRanks, Spread};

impl GpuRanks {
    /// Counts a step, and notes whose kept sets it leaves on which rank.
    pub(super) fn note_step(&mut self) {
        let Spread { plan: Some(plan), first_rows, batch_rows, .. } = &self.spread else { return };
        self.common.planner.count(plan);
        if !self.gpu.workspace.limits().kept {
            return;
        }
        let row = |place: usize| batch_rows.get(place).map_or(place, |row| *row as usize);
        let rows = |ends: &[usize; 2]| (ends[0]..ends[1]).map(row).collect();
        let is_gather = plan.layout == LogitsLayout::Gather;
        self.turn.keepers =
            if is_gather { Vec::new() } else { first_rows.array_windows().map(rows).collect() };
    }

    /// Returns the exchange that ranks begin after a step once their devices have done.
    pub(super) fn due(&self) -> Option<What> {
        self.gpu.workspace.limits().kept.then_some(What::Outputs)
    }

    /// Reads the kept sets of the last step into the sets of its rows, which are empty.
    pub(super) fn read_kept(&mut self, kept: &mut [Vec<u32>]) -> Result<()> {
        let (results, rank) = (self.gpu.workspace.results(), self.common.group.rank());
        if self.turn.keepers.is_empty() {
            return results.read(&mut [], kept);
        }
        let mut own = vec![Vec::new(); self.turn.keepers[rank].len()];
        results.read(&mut [], &mut own)?;
        let mut words = Vec::new();
        for ids in &own {
            words.push(ids.len() as u32);
            words.extend(ids);
        }
        let most_bytes =
            |rank: usize| size_of::<u32>() * (1 + self.gpu.vocab) * self.turn.keepers[rank].len();
        self.common.group.begin(self.turn.digest);
        let messages = self.common.group.all_gather(What::Outputs, &bytes_of(&words), most_bytes)?;
        for (rank, message) in messages.iter().enumerate() {
            let words = words_of(message);
            let mut rest = &words[..];
            let mut next = || {
                let count = *rest.split_off_first()? as usize;
                rest.split_off(..count).filter(|ids| ids.iter().all(|id| (*id as usize) < self.gpu.vocab))
            };
            let sets: Option<Vec<&[u32]>> = self.turn.keepers[rank].iter().map(|_| next()).collect();
            let Some(sets) = sets.filter(|_| rest.is_empty()) else {
                return Err(self.common.group.corrupt(rank, "kept sets that are none"));
            };
            self.turn.keepers[rank].iter().zip(sets).for_each(|(row, ids)| kept[*row].extend_from_slice(ids));
        }
        Ok(())
    }
}
