//! What a step over ranks sends in messages: a rank's part of the rows of an owner is one, and what it says
//! of results.

use std::sync::Arc;

use crate::abi::{self, MAX_RANKS, exchange_flags};
use crate::driver::runtime::Message;
use crate::launch::tuning;
use crate::memory::rows::Rows;
use crate::pipeline::exchange::Spread;
use crate::pipeline::messages::{ALIGNMENT, Mail, Post, RESULTS_OFFSET};
use crate::pipeline::rank_rows::ExchangeLayout;
use crate::pipeline::workspace::Workspace;

/// Rows of bytes that lie somewhere.
#[derive(Clone, Copy)]
struct Bytes {
    address: u64,
    stride: u64,
}

impl Spread<'_> {
    /// Returns what travels in messages in a step that exchanges results as `results` say, and rows of the
    /// caller unless none travel.
    pub(super) fn mail(
        &self,
        post: &Post,
        workspace: &Workspace,
        parts: &Rows<'_>,
        results: &abi::SendResults,
    ) -> Mail {
        let (rank, world) = (self.rank, self.rows.first_rows.len() - 1);
        let peers = || (0..world).filter(|peer| *peer != rank);
        let is_gather = self.rows.layout == ExchangeLayout::Gather;
        let words_per_row = tuning::result_words_per_row(results);
        let words = if is_gather { 0 } else { self.assigned * words_per_row };
        let bytes = RESULTS_OFFSET + words * size_of::<u64>();
        let of_window = |flag: u32, window: &dyn Fn(usize) -> u64| {
            let mut peers = results.peers;
            (0..world).filter(|peer| *peer != rank).for_each(|peer| peers.windows[peer] = window(peer));
            // What has not come with the message never comes.
            peers.timeout_ns = 0;
            let (arrivals_offset, flags) = (RESULTS_OFFSET as u64, results.flags | flag);
            abi::SendResults { peers, arrivals_offset, arrivals_bytes: 0, flags, ..*results }
        };
        let mut mail = Mail {
            messenger: Arc::clone(&post.messenger),
            pack: None,
            send_rows: Vec::new(),
            receive_rows: Vec::new(),
            unpack: Vec::new(),
            write_results: of_window(exchange_flags::SENDS, &|_| post.written()),
            send_results: peers().map(|peer| Message { peer, address: post.written(), bytes }).collect(),
            receive_results: peers()
                .map(|peer| Message { peer, address: post.arrived(peer), bytes })
                .collect(),
            collect_results: of_window(exchange_flags::COLLECTS, &|peer| post.arrived(peer)),
        };
        if self.rows.layout != ExchangeLayout::Replicated {
            self.add_rows(&mut mail, post, workspace, parts);
        }
        mail
    }

    /// Adds the messages of the caller's parts of rows, and what gathers them and puts them into the window.
    fn add_rows(&self, mail: &mut Mail, post: &Post, workspace: &Workspace, parts: &Rows<'_>) {
        let (rank, world, element) = (self.rank, self.rows.first_rows.len() - 1, parts.dtype.bytes());
        let width = |of: usize| (self.rows.first_ids[of + 1] - self.rows.first_ids[of]) * element;
        let (first_rows, own_width, sampled) = (self.rows.first_rows, width(rank), self.part());
        let caller = Bytes { address: parts.address, stride: (parts.stride * element) as u64 };
        let copy = |rows: usize, row_bytes: usize, from: Bytes, to: Bytes, batch_rows: u64| {
            let alignment = from.address | from.stride | to.address | to.stride | row_bytes as u64;
            let unit_bytes = [16, 4, 2].into_iter().find(|unit| alignment.is_multiple_of(u64::from(*unit)));
            let chunk_bytes = tuning::chunk_bytes(&workspace.device, rows, row_bytes);
            // The kernel takes it for a group of one rank, whose window begins with a header of nothing but
            // zeros.
            let mut windows = [0; MAX_RANKS];
            windows[0] = post.memory.address();
            abi::SendRows {
                peers: abi::Peers { windows, world: 1, rank: 0, timeout_ns: 0 },
                parts: from.address,
                stride_bytes: from.stride,
                row_bytes: row_bytes as u64,
                rows_offset: to.address.wrapping_sub(post.memory.address()),
                window_stride_bytes: to.stride,
                batch_rows,
                rows: rows as u32,
                chunk_bytes: chunk_bytes as u32,
                chunks_per_row: row_bytes.div_ceil(chunk_bytes).max(1) as u32,
                unit_bytes: unit_bytes.unwrap_or(2),
                flags: exchange_flags::GATHER,
                ..abi::SendRows::default()
            }
        };
        let mut next = post.arrived(world);
        let mut take = |bytes: usize| {
            let start = next;
            next += bytes.next_multiple_of(ALIGNMENT) as u64;
            start
        };
        let window_rows = self.windows.rows_address();
        let stride = self.windows.row_bytes(parts.dtype) as u64;
        let column =
            |of: usize| Bytes { address: window_rows + (self.rows.first_ids[of] * element) as u64, stride };
        let batch_rows = self.batch_rows;
        let sends = world > 1 && self.assigned > 0 && own_width > 0;
        let mut packed = caller;
        if sends && (batch_rows != 0 || caller.stride != own_width as u64) {
            packed = Bytes { address: take(self.assigned * own_width), stride: own_width as u64 };
            mail.pack = Some(copy(self.assigned, own_width, caller, packed, batch_rows));
        }
        if !sampled.is_empty() && own_width > 0 {
            let skipped = if batch_rows == 0 { sampled.start as u64 * caller.stride } else { 0 };
            let own = Bytes { address: caller.address + skipped, ..caller };
            let order =
                if batch_rows == 0 { 0 } else { batch_rows + (sampled.start * size_of::<u32>()) as u64 };
            mail.unpack.push(copy(sampled.len(), own_width, own, column(rank), order));
        }
        for peer in (0..world).filter(|peer| *peer != rank) {
            let of_peer = match self.rows.layout {
                ExchangeLayout::Gather => 0..self.assigned,
                _ => first_rows[peer]..first_rows[peer + 1],
            };
            if sends && !of_peer.is_empty() {
                let address = packed.address + (of_peer.start * own_width) as u64;
                mail.send_rows.push(Message { peer, address, bytes: of_peer.len() * own_width });
            }
            let (row_bytes, rows) = (width(peer), sampled.len());
            if rows > 0 && row_bytes > 0 {
                let came = Bytes { address: take(rows * row_bytes), stride: row_bytes as u64 };
                mail.receive_rows.push(Message { peer, address: came.address, bytes: rows * row_bytes });
                mail.unpack.push(copy(rows, row_bytes, came, column(peer), 0));
            }
        }
    }
}
