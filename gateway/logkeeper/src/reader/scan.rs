//! Finds the lines of a text, forward and backward, in blocks of bounded size.

use std::io;
use std::ops::ControlFlow;

use super::entry::HEAD_MAX;
use super::text::{BLOCK, LogText};

/// The longest text without a line end that is searched, in bytes. A container can make a file of any size
/// that consists of nothing.
pub(super) const UNBROKEN_MAX: u64 = 64 << 20;

/// Visits the lines that begin before `end`, the last one first, with where each begins and its beginning, until
/// `visit` breaks. Text without line ends is cut. The text must be one that can be read at any position.
pub(super) fn backward<B>(
    text: &mut LogText,
    end: u64,
    mut visit: impl FnMut(u64, &[u8]) -> ControlFlow<B>,
) -> io::Result<ControlFlow<B>> {
    let mut block = vec![0; BLOCK + HEAD_MAX];
    // Lines that begin at or after it were visited.
    let mut unvisited = end;
    let mut block_end = end;
    while block_end > 0 {
        let begin = block_end.saturating_sub(BLOCK as u64);
        let size = usize::try_from(block_end - begin).unwrap_or(BLOCK);
        // Beyond the block, there may be the rest of the beginning of its last line.
        let len = text.read_fully_at(&mut block[..size + HEAD_MAX], begin)?;
        for line_end in memchr::memrchr_iter(b'\n', &block[..size.min(len)]) {
            let start = begin + line_end as u64 + 1;
            if start < unvisited {
                unvisited = start;
                let head = head_of(&block[line_end + 1..len]);
                if let ControlFlow::Break(value) = visit(start, head) {
                    return Ok(ControlFlow::Break(value));
                }
            }
        }
        if begin == 0 || unvisited - begin > UNBROKEN_MAX {
            return Ok(visit(begin, head_of(&block[..len])));
        }
        block_end = begin;
    }
    Ok(ControlFlow::Continue(()))
}

/// Visits the lines that begin at or after `start`, where one begins, and before `end`, in their order, with where
/// each begins and its beginning, until `visit` breaks. The search ends in a line of more than `longest` bytes.
pub(super) fn forward<B>(
    text: &mut LogText,
    start: u64,
    end: u64,
    longest: u64,
    mut visit: impl FnMut(u64, &[u8]) -> ControlFlow<B>,
) -> io::Result<ControlFlow<B>> {
    let mut block = vec![0; BLOCK];
    let mut head = Vec::with_capacity(HEAD_MAX);
    let mut line = start;
    let mut position = start;
    loop {
        let len = text.read_at(&mut block, position)?;
        let mut rest = &block[..len];
        while !rest.is_empty() {
            let line_end = memchr::memchr(b'\n', rest);
            let part = &rest[..line_end.unwrap_or(rest.len())];
            head.extend_from_slice(&part[..part.len().min(HEAD_MAX - head.len())]);
            let used = line_end.map_or(rest.len(), |at| at + 1);
            position += used as u64;
            rest = &rest[used..];
            if line_end.is_some() {
                if let ControlFlow::Break(value) = visit(line, &head) {
                    return Ok(ControlFlow::Break(value));
                }
                head.clear();
                line = position;
                if line >= end {
                    return Ok(ControlFlow::Continue(()));
                }
            }
        }
        if position - line > longest {
            return Ok(ControlFlow::Continue(()));
        }
        if len == 0 {
            let is_begun = position > line;
            return Ok(if is_begun {
                visit(line, &head)
            } else {
                ControlFlow::Continue(())
            });
        }
    }
}

/// The beginning of the line that the text begins with.
fn head_of(text: &[u8]) -> &[u8] {
    let head = &text[..text.len().min(HEAD_MAX)];
    &head[..memchr::memchr(b'\n', head).unwrap_or(head.len())]
}
