//! Building an artefact in pieces, so that it can be stopped and goes on.
//!
//! Beside the artefact lies a file of the finished part (`.part`): a line that identifies the build, and a
//! record for each piece of rows, with its SHA-256. A build reads the records that are whole and of the same
//! weights, and computes the others. When all are there the artefact is written, and the file goes.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;

use gumball_cpu::files;
use sha2::{Digest, Sha256};

use super::{ArtefactError, Kind, Result, Source, check_place, left_over, write_screen};
use crate::exact::Exact;
use crate::screen::Screen;

/// How many bytes of weights a piece has, about.
const PIECE_BYTES: usize = 1 << 24;

/// How far a build is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BuildProgress {
    /// Rows that are done.
    pub done: usize,
    /// Rows in all.
    pub of: usize,
    /// How many of the finished rows were there from an earlier call.
    pub resumed: usize,
}

/// Builds the artefact of a certified head with an 8-bit screen, over rayon's threads, and writes it to a
/// file, which appears when it is whole.
///
/// `name`: the name of the tensor of weights. `progress` is called before the first piece and after each
/// piece with the number of rows that are done, and returns whether to go on. If it returns false, or if the
/// process ends, the pieces that are done stay beside the file, and the next call with the same arguments
/// continues after them.
///
/// # Errors
/// - [`ArtefactError::Io`] if a file cannot be written; and before anything is built for what [`check_place`]
///   refuses.
/// - [`ArtefactError::Interrupted`] if `progress` said so.
/// - [`ArtefactError::BigEndian`] on a machine that stores numbers the other way round.
pub fn build(
    exact: &Exact<'_>,
    name: &str,
    path: &Path,
    progress: &mut dyn FnMut(BuildProgress) -> bool,
) -> Result<()> {
    if cfg!(target_endian = "big") {
        return Err(ArtefactError::BigEndian);
    }
    check_place(path)?;
    let source = Source::of(exact, name);
    let mut screen = Screen::uncoded(exact);
    let rows = (PIECE_BYTES / (exact.width() * exact.weights().element_bytes())).max(1);
    let part_path = left_over::place(path);
    let failed = || ArtefactError::io(&part_path);
    let line = left_over::line(&format!("pieces of {rows} rows"), &source, exact, Kind::Certified);
    let mut part = open_part(&part_path, &line).map_err(failed())?;
    let (vocab, mut done) = (exact.vocab(), 0);
    while done < vocab {
        let ids = done..(done + rows).min(vocab);
        let start = part.stream_position().map_err(failed())?;
        if !read_piece(&mut part, &mut screen, ids.clone()).map_err(failed())? {
            // The bytes after it are not whole, or of another build.
            part.set_len(start).map_err(failed())?;
            part.seek(SeekFrom::Start(start)).map_err(failed())?;
            break;
        }
        done = ids.end;
    }
    let resumed = done;
    let mut go_on = progress(BuildProgress { done, of: vocab, resumed });
    while done < vocab {
        if !go_on {
            return Err(ArtefactError::Interrupted);
        }
        let ids = done..(done + rows).min(vocab);
        screen.code_rows(exact, ids.clone());
        write_piece(&mut part, &screen, ids.clone()).map_err(failed())?;
        done = ids.end;
        go_on = progress(BuildProgress { done, of: vocab, resumed });
    }
    write_screen(screen.arrays(), exact, &source, path)?;
    drop(part);
    std::fs::remove_file(&part_path).map_err(failed())
}

/// Opens the file of finished pieces, at the end of its first line; makes a new one if this build has left
/// none.
fn open_part(path: &Path, line: &[u8]) -> std::io::Result<File> {
    if let Some(part) = left_over::open(path, line)? {
        return Ok(part);
    }
    files::write(path, line)?;
    left_over::open(path, line)?
        .ok_or_else(|| std::io::Error::other("another build has begun there meanwhile"))
}

/// Reads the record of a piece into a screen; returns whether there is a whole one.
fn read_piece(part: &mut File, screen: &mut Screen, ids: Range<usize>) -> std::io::Result<bool> {
    let [codes, scales, own, code_norms] = screen.piece_mut(ids);
    let mut digest = Sha256::new();
    let mut sum = [0; 32];
    for bytes in [codes, scales, own, code_norms] {
        if !read_whole(part, bytes)? {
            return Ok(false);
        }
        digest.update(&*bytes);
    }
    Ok(read_whole(part, &mut sum)? && digest.finalize()[..] == sum)
}

/// Fills bytes; returns false where the file ends before.
fn read_whole(part: &mut File, bytes: &mut [u8]) -> std::io::Result<bool> {
    match part.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// Writes the record of a piece.
fn write_piece(part: &mut File, screen: &Screen, ids: Range<usize>) -> std::io::Result<()> {
    let mut digest = Sha256::new();
    for bytes in screen.piece(ids) {
        digest.update(bytes);
        part.write_all(bytes)?;
    }
    part.write_all(&digest.finalize())?;
    part.flush()
}
