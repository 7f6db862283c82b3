//! The Branch Trace Store of Intel's Debug Store, for a virtual processor.
//!
//! A virtual processor owns a [`Recorder`]. It passes writes of IA32_DEBUGCTL and IA32_DS_AREA to
//! the recorder. After each transfer of control it asks [`Recorder::enabled`] and, if the branch is
//! wanted, calls [`DsArea::store`], which writes the branch record into guest memory.
//!
//! | module | contents |
//! |---|---|
//! | `recorder` | the two MSRs, and the filter by CPL |
//! | `buffer` | the slot for a record, the threshold, faults, and runs of slots ([`Window`]) |
//! | `ds_area` | the fields of the DS management area, and the branch record |
//! | `formats` | the Debug Store of each microarchitecture: its bits, word size and flags |
//! | `debugctl` | the bits of IA32_DEBUGCTL |
//!
//! The crate depends on no operating system and no hypervisor. It accesses guest memory only
//! through [`DsMemory`].
//!
//! # Example
//!
//! A DS area in 4 KiB of memory, and a branch whose record is stored there:
//!
//! ```
//! use vbts_bts::{
//!     BranchRecord, BtsFields, DebugCtl, DsFault, DsMemory, Microarchitecture, RECORD_SIZE,
//!     Recorder, Stored, Word,
//! };
//!
//! /// Memory whose linear addresses are offsets.
//! struct Memory([u8; 0x1000]);
//!
//! impl DsMemory for Memory {
//!     fn read<W: Word, const N: usize>(&mut self, la: u64) -> Result<[W; N], DsFault> {
//!         let size = W::SIZE as usize;
//!         let bytes = self.0.get(la as usize..).ok_or(DsFault::Unmapped)?;
//!         let bytes = bytes.get(..size * N).ok_or(DsFault::Unmapped)?;
//!         Ok(std::array::from_fn(|n| {
//!             let mut word = [0; 8];
//!             word[..size].copy_from_slice(&bytes[size * n..][..size]);
//!             W::truncate(u64::from_le_bytes(word))
//!         }))
//!     }
//!     fn write<W: Word, const N: usize>(
//!         &mut self,
//!         la: u64,
//!         words: &[W; N],
//!     ) -> Result<(), DsFault> {
//!         let size = W::SIZE as usize;
//!         let end = la as usize + size * N;
//!         let bytes = self.0.get_mut(la as usize..end).ok_or(DsFault::Unmapped)?;
//!         for (slot, word) in bytes.chunks_exact_mut(size).zip(words) {
//!             slot.copy_from_slice(&word.extend().to_le_bytes()[..size]);
//!         }
//!         Ok(())
//!     }
//! }
//!
//! const DS_AREA: usize = 0x100;
//! const BUFFER: usize = 0x200;
//!
//! // Room for ten records. The threshold is past the buffer: no interrupt.
//! let end = BUFFER as u64 + 10 * RECORD_SIZE;
//! let fields = BtsFields {
//!     base: BUFFER as u64,
//!     index: BUFFER as u64,
//!     absolute_maximum: end,
//!     threshold: end + 1,
//! };
//! let mut memory = Memory([0; 0x1000]);
//! memory.0[DS_AREA..][..BtsFields::SIZE].copy_from_slice(&fields.to_bytes());
//!
//! let mut recorder = Recorder::new(Microarchitecture::Core2);
//! recorder.set_ds_area(DS_AREA as u64)?;
//! recorder.set_debugctl((DebugCtl::TR | DebugCtl::BTS | DebugCtl::BTS_OFF_OS).bits())?;
//!
//! // A branch to CPL 3 is stored, one to CPL 0 is not.
//! assert!(recorder.enabled(3) && !recorder.enabled(0));
//! let stored = recorder.area().store(&mut memory, 0x40_1000, 0x40_2000);
//! assert_eq!(stored, Ok(Stored::Stored));
//!
//! let record = memory.0[BUFFER..].first_chunk().unwrap();
//! assert_eq!(BranchRecord::from_bytes(record), BranchRecord::new(0x40_1000, 0x40_2000));
//! let fields = memory.0[DS_AREA..].first_chunk().unwrap();
//! assert_eq!(BtsFields::from_bytes(fields).index, BUFFER as u64 + RECORD_SIZE);
//! # Ok::<(), vbts_bts::Gp>(())
//! ```
//!
//! Section numbers refer to the Intel SDM Vol. 3B, chapter 17 ("Debug, Branch Profile, TSC, ...
//! Features") of the editions up to 2019. Later editions number the chapter 18 or 19 and keep the
//! numbers of the subsections.

#![forbid(unsafe_code)]

mod buffer;
mod debugctl;
mod ds_area;
mod formats;
mod recorder;

pub use buffer::{DropReason, DsArea, DsFault, DsMemory, Stored, Window};
pub use debugctl::{DebugCtl, Layout, Microarchitecture};
pub use ds_area::{BranchRecord, BtsFields, DS_INDEX_OFFSET, RECORD_SIZE};
pub use formats::{DebugStore, Format, Word};
pub use recorder::{Gp, Recorder};
