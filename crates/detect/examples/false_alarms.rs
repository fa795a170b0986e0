//! Counts false alarms on texts without a mark, and times the detector: `false_alarms [TEXTS]`, by default
//! 100000.
//!
//! Half of the ids of each text come from one of 20 templates, word for word, and the others from a law in
//! which few ids are frequent. Each text is looked at with four keys. It fails if more texts are found at a
//! threshold than the threshold allows, by five standard deviations.

use std::process::ExitCode;
use std::time::Instant;

use gumball_detect::{Scheme, detect};
use gumball_spec::Watermark;
use gumball_spec::num::philox4x32_10;
use gumball_spec::watermark::add_key;

const LENGTH: u32 = 200;

/// An id that is as frequent as its rank is small.
fn id(seed: u64, place: u32) -> u32 {
    let [word, ..] = philox4x32_10(seed, [place, 0, 0, 0]);
    (f64::from(word) / 2f64.powi(32) * 10f64.ln() * 4.0).exp() as u32
}

fn text(number: u64) -> Vec<u32> {
    let template = number % 20;
    (0..LENGTH)
        .map(|place| match (place / 20) % 2 {
            0 => id(template, place),
            _ => id(1000 + number, place),
        })
        .collect()
}

fn main() -> ExitCode {
    let texts: u64 =
        std::env::args().nth(1).map_or(100_000, |count| count.parse().expect("a number of texts"));
    let mut is_right = true;
    for number in 0..4u32 {
        add_key(number, [number as u8 * 37 + 5; 16]).expect("a new key");
        let watermark = Watermark { key: number, ..Watermark::default() };
        let keys = Scheme::Gumball.key(number).expect("added");
        let (mut found, mut tokens) = ([0u64; 4], 0);
        let thresholds = [0.1, 0.01, 0.001, 0.0001];
        let began = Instant::now();
        for number in 0..texts {
            let evidence = detect(&text(number), 0, Scheme::Gumball, &watermark, keys);
            tokens += evidence.tokens;
            for (count, threshold) in found.iter_mut().zip(thresholds) {
                *count += u64::from(evidence.p_value() < threshold);
            }
        }
        let rate = tokens as f64 / began.elapsed().as_secs_f64();
        print!("key {number}: {rate:.0} tokens a second;");
        for (count, threshold) in found.into_iter().zip(thresholds) {
            let mean = texts as f64 * threshold;
            // Texts share templates, so their scores are not independent: half of each is the same twenty
            // times.
            let most = mean + 5.0 * (mean * (1.0 + texts as f64 / 40.0 * threshold)).sqrt() + 5.0;
            is_right &= count as f64 <= most;
            print!(" {count} below {threshold} ({mean:.0})");
        }
        println!();
    }
    if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
