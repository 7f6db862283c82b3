//! Decodes branches.

use super::predictor::{
    CLASSES, Context, MAX_NODES, Nodes, class_of, confirmed, node_of, position,
};
use super::streams::{self, KNOWN, NEW, Symbols};
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
#[derive(Debug)]
pub struct Decoder {
    nodes: Nodes,
    /// For each class: correct predictions before the next wrong one.
    runs: Box<[u32; CLASSES]>,
    /// For each class: the code of what follows there.
    codes: Box<[u8; CLASSES]>,
    classes: [Symbols; CLASSES],
    named: Stream,
    new: Stream,
}

impl Default for Decoder {
    fn default() -> Self {
        Self {
            nodes: Nodes::default(),
            runs: Box::new([0; CLASSES]),
            codes: Box::new([0; CLASSES]),
            classes: Default::default(),
            named: Stream::default(),
            new: Stream::default(),
        }
    }
}

impl Decoder {
    /// Starts to decode an encoded form.
    ///
    /// # Errors
    /// It is damaged.
    pub fn start(&mut self, encoded: &[u8]) -> Result<(), Error> {
        self.nodes.clear();
        let mut cursor = Cursor(encoded);
        let mut limit = MAX_PLAIN;
        let mut stream = || {
            let stream = streams::take(&mut cursor, limit)?;
            limit -= stream.len();
            Ok::<_, Error>(stream)
        };
        for (class, symbols) in self.classes.iter_mut().enumerate() {
            *symbols = Symbols::new(stream()?, stream()?);
            (self.runs[class], self.codes[class]) = symbols.next().unwrap_or(ENDLESS);
        }
        self.named = Stream::new(stream()?);
        self.new = Stream::new(stream()?);
        Ok(())
    }

    /// The branches that there have been so far, by their numbers.
    pub fn branches(&self) -> &[Branch] {
        &self.nodes.branches
    }

    /// Fills `out` with what `of` makes of the next branches and their numbers. They belong to the
    /// task of `context`.
    ///
    /// # Errors
    /// The encoded form is damaged. `out` may have some of them.
    pub fn take<T>(
        &mut self,
        context: &mut Context,
        out: &mut [T],
        of: impl Fn(u32, &Branch) -> T,
    ) -> Result<(), Error> {
        let mut at = *context;
        for out in out {
            let entry = self.nodes.entry(&at).ok_or(Error::Damaged)?;
            let prediction = *entry;
            let run = &mut self.runs[class_of(prediction)];
            let node = if *run > 0 {
                *run -= 1;
                *entry = confirmed(prediction);
                node_of(prediction)
            } else {
                self.take_other(at, prediction).ok_or(Error::Damaged)?
            };
            let branch = self.nodes.branches.get(node as usize);
            *out = of(node, branch.ok_or(Error::Damaged)?);
            at.advance(node);
        }
        *context = at;
        Ok(())
    }

    /// Decodes the node of a branch that is not the predicted one. Returns `None` if the encoded
    /// form is damaged.
    #[inline(never)]
    fn take_other(&mut self, context: Context, prediction: u32) -> Option<u32> {
        let class = class_of(prediction);
        let code = self.codes[class];
        (self.runs[class], self.codes[class]) = self.classes[class].next().unwrap_or(ENDLESS);
        let node = if code < KNOWN {
            let recent = self.nodes.recent.get_mut(context.last as usize)?;
            let code = usize::from(code);
            // The prediction has no code.
            let skipped = position(recent, node_of(prediction)) <= code;
            let at = code + usize::from(skipped);
            let node = *recent.get(at)?;
            recent.swap(0, at);
            node
        } else {
            self.named_or_new(code, context.last)?
        };
        self.nodes.correct_entry(&context, node);
        Some(node)
    }

    /// Decodes the node of a branch that is not among the last corrections of `last`.
    #[inline(never)]
    fn named_or_new(&mut self, code: u8, last: u32) -> Option<u32> {
        let node = match code {
            KNOWN => self.named.read(Cursor::word).ok()?,
            NEW if self.nodes.len() < MAX_NODES => {
                let before = self.nodes.branches.get(last as usize)?.to;
                let from = before.wrapping_add_signed(self.new.read(Cursor::signed).ok()?);
                let to = from.wrapping_add_signed(self.new.read(Cursor::signed).ok()?);
                self.nodes.push(Branch { from, to })
            }
            _ => return None,
        };
        if node as usize >= self.nodes.len() {
            return None;
        }
        self.nodes.correct(last, node);
        Some(node)
    }
}
