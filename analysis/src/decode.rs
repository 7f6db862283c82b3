//! Decodes a trace on all processors. Each thread decodes a block, and they are given out in order,
//! so that what is made of them does not depend on the number of threads.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufReader};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use vbts_trace::{Batch, Error, Event, Reader};

use vbts_host::{FileAt, Workers};

/// Batches of a block that are decoded ahead: about as many as a block has.
const AHEAD: usize = 72;

/// What decodes one block after the other.
struct Decoder {
    reader: Reader<BufReader<FileAt<Arc<File>>>>,
    /// Batches that were taken.
    reusable: Receiver<Batch>,
}

/// What a thread sends.
enum Message {
    /// A batch of its block.
    Batch(Batch),
    /// The block has ended, and the thread is free.
    End(Box<Decoder>),
    /// It cannot be read.
    Failed(Error),
}

/// A block that is decoded.
struct Block {
    number: usize,
    batches: Receiver<Message>,
    /// Takes empty batches back.
    empty: SyncSender<Batch>,
}

/// What is given out.
pub(crate) enum Decoded<'a> {
    /// The block with this number begins: its list of branches is empty.
    Begin(usize),
    /// A batch of the block. It may be taken apart.
    Batch(&'a mut Batch),
}

/// Decodes the blocks with these numbers, and gives them to `take`, as long as that returns true.
/// Leaves out the events that are not `wanted`.
///
/// # Errors
/// The trace cannot be read, or is damaged.
pub(crate) fn decode(
    reader: &Reader<BufReader<File>>,
    numbers: impl IntoIterator<Item = usize>,
    workers: &Workers,
    wanted: fn(&Event) -> bool,
    mut take: impl FnMut(Decoded<'_>) -> bool,
) -> Result<(), Error> {
    let file = Arc::new(reader.input().get_ref().try_clone()?);
    let mut rest = numbers.into_iter();
    let mut blocks: VecDeque<Block> = VecDeque::new();
    for number in rest.by_ref().take(workers.count()) {
        let (empty, reusable) = sync_channel(AHEAD);
        let reader = reader.with_input(BufReader::new(FileAt::new(file.clone(), 0)));
        let decoder = Box::new(Decoder { reader, reusable });
        let batches = begin(decoder, number, workers, wanted);
        blocks.push_back(Block {
            number,
            batches,
            empty,
        });
    }
    while let Some(block) = blocks.pop_front() {
        if !take(Decoded::Begin(block.number)) {
            return Ok(());
        }
        loop {
            match block.batches.recv() {
                Ok(Message::Batch(mut batch)) => {
                    if !take(Decoded::Batch(&mut batch)) {
                        return Ok(());
                    }
                    // The thread makes a new one if none is left.
                    let _ = block.empty.try_send(batch);
                }
                Ok(Message::End(decoder)) => {
                    if let Some(number) = rest.next() {
                        let batches = begin(decoder, number, workers, wanted);
                        let empty = block.empty;
                        blocks.push_back(Block {
                            number,
                            batches,
                            empty,
                        });
                    }
                    break;
                }
                Ok(Message::Failed(error)) => return Err(error),
                Err(_) => return Err(io::Error::other("a thread has ended").into()),
            }
        }
    }
    Ok(())
}

/// Lets a thread decode a block. Returns what receives it.
fn begin(
    mut decoder: Box<Decoder>,
    number: usize,
    workers: &Workers,
    wanted: fn(&Event) -> bool,
) -> Receiver<Message> {
    let (sender, batches) = sync_channel(AHEAD);
    workers.run(move || {
        let last = match decoder.decode(number, wanted, &sender) {
            Ok(()) => Message::End(decoder),
            Err(error) => Message::Failed(error),
        };
        // The end of the report drops the receiver.
        let _ = sender.send(last);
    });
    batches
}

impl Decoder {
    fn decode(
        &mut self,
        number: usize,
        wanted: fn(&Event) -> bool,
        batches: &SyncSender<Message>,
    ) -> Result<(), Error> {
        self.reader.seek_block(number)?;
        let (mut listed, mut goes_on) = (0, true);
        while goes_on {
            let mut batch = self.reusable.try_recv().unwrap_or_default();
            goes_on = self.reader.next_batch(&mut batch, listed, wanted)?;
            listed += batch.new.len();
            if batches.send(Message::Batch(batch)).is_err() {
                break;
            }
        }
        Ok(())
    }
}
