//! Decodes branches.

use std::vec::IntoIter;

use super::corrections::KEPT;
use super::predictor::{Context, MAX_NODES, Nodes, confirmed, node_of};
use super::streams::{self, INDEX_BYTES, KNOWN, NEW, Symbols, stream_after};
use crate::chunk::MAX_PLAIN;
use crate::varint::Cursor;
use crate::{Branch, Error};

/// A run that does not end.
const ENDLESS: (u32, u8) = (u32::MAX, NEW + 1);

/// A stream of bytes that is read from its front.
#[derive(Debug, Default)]
struct Stream {
    bytes: Vec<u8>,
    at: usize,
}

impl Stream {
    fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, at: 0 }
    }

    fn read<'a, T>(
        &'a mut self,
        read: impl FnOnce(&mut Cursor<'a>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut cursor = Cursor(self.bytes.get(self.at..).unwrap_or_default());
        let value = read(&mut cursor)?;
        self.at = self.bytes.len() - cursor.0.len();
        Ok(value)
    }
}

/// Decodes branches.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    nodes: Nodes,
    /// Right predictions before the next wrong one.
    run: u32,
    /// The code of what follows there.
    code: u8,
    symbols: Symbols,
    named: IntoIter<u32>,
    new: Stream,
}

impl Decoder {
    /// Starts to decode an encoded form.
    ///
    /// # Errors
    /// It is damaged.
    pub(crate) fn start(&mut self, encoded: &[u8]) -> Result<(), Error> {
        self.nodes.clear();
        let mut cursor = Cursor(encoded);
        let mut limit = MAX_PLAIN;
        let mut stream = || {
            let stream = streams::take(&mut cursor, limit)?;
            limit -= stream.len();
            Ok::<_, Error>(stream)
        };
        let mut symbols = <[IntoIter<u8>; _]>::default();
        for symbols in &mut symbols {
            *symbols = stream()?.into_iter();
        }
        self.symbols = Symbols::new(symbols, stream()?);
        self.named = indices([stream()?, stream()?, stream()?])?.into_iter();
        self.new = Stream::new(stream()?);
        (self.run, self.code) = self.symbols.next(0).unwrap_or(ENDLESS);
        Ok(())
    }

    /// The branches that there have been so far, by their numbers.
    pub(crate) fn branches(&self) -> &[Branch] {
        &self.nodes.branches
    }

    /// Fills `out` with what `of` makes of the next branches and their numbers. They belong to the
    /// task of `context`.
    ///
    /// # Errors
    /// The encoded form is damaged. `out` may have some of them.
    pub(crate) fn take<T>(
        &mut self,
        context: &mut Context,
        out: &mut [T],
        of: impl Fn(u32, &Branch) -> T,
    ) -> Result<(), Error> {
        let mut at = *context;
        let mut run = self.run;
        for out in out {
            let entry = self.nodes.entry(&at).ok_or(Error::Damaged)?;
            let prediction = *entry;
            let node = if run > 0 {
                run -= 1;
                *entry = confirmed(prediction);
                node_of(prediction)
            } else {
                let node = self.take_other(&at, node_of(prediction));
                run = self.run;
                node.ok_or(Error::Damaged)?
            };
            let branch = self.nodes.branches.get(node as usize);
            *out = of(node, branch.ok_or(Error::Damaged)?);
            at.advance(node);
        }
        self.run = run;
        *context = at;
        Ok(())
    }

    /// Decodes the node of a branch that is not the predicted one. Returns `None` if the encoded
    /// form is damaged.
    #[inline(always)]
    fn take_other(&mut self, context: &Context, predicted: u32) -> Option<u32> {
        let code = self.code;
        // What is read for the next wrong prediction does not depend on this one: the host knows
        // early how many right ones follow.
        let next = self.symbols.next(stream_after(context.last));
        (self.run, self.code) = next.unwrap_or(ENDLESS);
        let node = if code < KNOWN {
            let corrections = self.nodes.corrections.get_mut(context.last as usize)?;
            corrections.decode(code, predicted)?
        } else {
            let node = self.named_or_new(code, context.last)?;
            let corrections = self.nodes.corrections.get_mut(context.last as usize)?;
            corrections.insert(node, KEPT);
            node
        };
        self.nodes.correct_entry(context, node);
        Some(node)
    }

    /// Decodes the node of a branch that is not among the last corrections of `last`.
    #[inline(always)]
    fn named_or_new(&mut self, code: u8, last: u32) -> Option<u32> {
        if code == KNOWN {
            let node = self.named.next()?;
            return ((node as usize) < self.nodes.len()).then_some(node);
        }
        self.take_new(code, last)
    }

    /// Decodes a new branch, and returns its node.
    #[cold]
    #[inline(never)]
    fn take_new(&mut self, code: u8, last: u32) -> Option<u32> {
        if code != NEW || self.nodes.len() >= MAX_NODES {
            return None;
        }
        let before = self.nodes.branches.get(last as usize)?.to;
        let from = before.wrapping_add_signed(self.new.read(Cursor::signed).ok()?);
        let to = from.wrapping_add_signed(self.new.read(Cursor::signed).ok()?);
        Some(self.nodes.push(Branch { from, to }))
    }
}

/// The indices whose bytes the streams have.
fn indices(streams: [Vec<u8>; INDEX_BYTES]) -> Result<Vec<u32>, Error> {
    let [low, middle, high] = streams;
    if low.len() != middle.len() || low.len() != high.len() {
        return Err(Error::Damaged);
    }
    let all = low.into_iter().zip(middle).zip(high);
    let index = |((low, middle), high)| u32::from_le_bytes([low, middle, high, 0]);
    Ok(all.map(index).collect())
}
