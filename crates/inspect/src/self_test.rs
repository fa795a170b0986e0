//! A short self-test: the generator's known answer, and every level and device drawing the oracle's tokens.

use gumball_engine::{Device, Level, Place, Route};
use gumball_spec::num::philox4x32_10;
use gumball_spec::{Request, SamplingParams, oracle};
use serde::Serialize;

use crate::Result;
use crate::logits::{Kind, generate};
use crate::one_slot::OneSlot;

/// One thing that was tested.
#[derive(Clone, Debug, Serialize)]
pub struct Item {
    /// What.
    pub name: String,
    /// Whether it holds.
    pub holds: bool,
    /// The figures.
    pub detail: String,
}

/// Rows of each kind, and draws from each.
const ROWS: usize = 4;
const DRAWS: u32 = 3;
const VOCAB: usize = 5000;

/// Runs the test.
///
/// # Errors
/// None that this program's own parameters should cause; a backend's are passed on.
pub fn run() -> Result<Vec<Item>> {
    let answer = philox4x32_10(u64::MAX, [u32::MAX; 4]);
    let known = [0x408F_276D, 0x41C8_3B0E, 0xA20B_C7C6, 0x6D54_51FD];
    let mut items = vec![Item {
        name: "philox4x32-10, known answer".to_owned(),
        holds: answer == known,
        detail: format!("{:08x} {:08x} {:08x} {:08x}", answer[0], answer[1], answer[2], answer[3]),
    }];
    for level in Level::available() {
        let (same, all) = agreement(&Place::Host { threads: Some(1), level: Some(level) })?;
        items.push(Item {
            name: format!("{level} draws the oracle's tokens"),
            holds: same == all,
            detail: format!("{same} of {all}"),
        });
    }
    Ok(items)
}

/// Runs the test of a device.
///
/// # Errors
/// The errors of the device.
pub fn on_device(device: &Device) -> Result<Item> {
    let (same, all) = agreement(&Place::device(device.clone(), 1))?;
    let name = format!("{} draws the oracle's tokens", device.name());
    Ok(Item { name, holds: same == all, detail: format!("{same} of {all}") })
}

/// Counts draws at a place that equal the oracle's, and all draws.
fn agreement(place: &Place) -> Result<(u32, u32)> {
    let neutral = SamplingParams::default;
    let settings = [
        neutral(),
        SamplingParams { temperature: 0.0, ..neutral() },
        SamplingParams { temperature: 0.7, top_k: 50, top_p: 0.9, ..neutral() },
        SamplingParams { typical_p: 0.9, min_p: 0.02, ..neutral() },
    ];
    let (mut same, mut all) = (0, 0);
    for params in settings {
        let mut slot = OneSlot::new(&params, VOCAB, place.clone(), Route::Race)?;
        for kind in [Kind::ModelLike, Kind::Flat] {
            let rows = generate(kind, ROWS, VOCAB, 1).expect("a shape of ours");
            for (row, draw) in (0..ROWS).flat_map(|row| (0..DRAWS).map(move |draw| (row, draw))) {
                let request = Request { position: 3, draw, ..Request::new(&params, &[], 7) };
                let expected = oracle::sample(rows.row(row), &request, None)?.token;
                slot.draw(rows.row(row), &request)?;
                same += u32::from(slot.drawn().tokens() == [expected]);
                all += 1;
            }
        }
    }
    Ok((same, all))
}
