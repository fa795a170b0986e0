//! What other settings would draw from the same arrivals, as data for a page that lets one try.
//!
//! At any temperature the winner maximises `z / T - ln(arrival)`, a line in `1 / T`: so whatever the
//! temperature, the winner is a corner of the convex hull of the points (logit, -ln arrival). The page
//! therefore needs the leading tokens, the corners of the rest, and a count of the rest for the masses.

use gumball_spec::draw::arrival;
use serde::Serialize;

use super::Path;

/// The leading tokens, and what there is to know of the rest.
#[derive(Clone, Debug, Serialize)]
pub struct WhatIf {
    /// The leading tokens of the order, then corners of the rest.
    pub tokens: Vec<Entry>,
    /// How many of them are the leading ones.
    pub leading: usize,
    /// The tokens after the leading ones, counted by their logit.
    pub rest: Vec<Bucket>,
}

/// A token that may win.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// The token.
    pub id: u32,
    /// Its text, if there is a tokenizer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Its place in the order.
    pub place: usize,
    /// Its logit after the edits.
    pub z: f32,
    /// The natural logarithm of its arrival.
    pub ln_arrival: f64,
}

/// Tokens of about the same logit.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Bucket {
    /// The mean of their logits.
    pub z: f64,
    /// How many.
    pub count: usize,
}

/// How many of the leading tokens are listed one by one.
const LEADING: usize = 1000;
/// How many buckets the rest is counted in.
const BUCKETS: usize = 128;

impl WhatIf {
    pub(super) fn of(path: &Path<'_>) -> Self {
        let leading = path.order.len().min(LEADING);
        let entry = |place: usize| {
            let id = path.order[place];
            let ln_arrival = f64::from(arrival(path.request, id)).ln();
            Entry { id, text: (path.texts)(id), place, z: path.z[id as usize], ln_arrival }
        };
        let mut tokens: Vec<Entry> = (0..leading).map(entry).collect();
        tokens.extend(corners(path, leading).into_iter().map(entry));
        let rest = &path.order[leading..];
        let rest = rest.chunks(rest.len().div_ceil(BUCKETS).max(1)).map(|ids| Bucket {
            z: ids.iter().map(|id| f64::from(path.z[*id as usize])).sum::<f64>() / ids.len() as f64,
            count: ids.len(),
        });
        Self { tokens, leading, rest: rest.collect() }
    }
}

/// Returns the places after the leading ones that win at some temperature among themselves.
fn corners(path: &Path<'_>, leading: usize) -> Vec<usize> {
    let point = |place: &usize| {
        let id = path.order[*place];
        (f64::from(path.z[id as usize]), -f64::from(arrival(path.request, id)).ln())
    };
    // From the largest logit down, the upper hull only ever rises.
    let mut hull: Vec<(usize, (f64, f64))> = Vec::new();
    for place in leading..path.order.len() {
        let p = point(&place);
        if hull.last().is_some_and(|(_, top)| p.1 <= top.1) {
            continue;
        }
        while let [.., (_, a), (_, b)] = hull.as_slice() {
            // b is no corner if it lies on or below the line from a to p.
            if (b.1 - a.1) * (a.0 - p.0) <= (p.1 - a.1) * (a.0 - b.0) {
                hull.pop();
            } else {
                break;
            }
        }
        hull.push((place, p));
    }
    hull.into_iter().map(|(place, _)| place).collect()
}
