//! The guest's arithmetic flags in native code.
//!
//! They stay in the host's flags until something overwrites those. Then they are saved in the
//! frame, unless the guest overwrites its own flags before anything can observe them.
//! [`Flags`] is the location of the flags at the place that is being translated: only its methods
//! emit code that moves them, so that the location always agrees with the code.

mod fixup;
mod recipe;

use iced_x86::RflagsBits;

use crate::backend::jit::assembler::{Assembler, Byte, cond};
use crate::backend::jit::registers::map::Location;

pub(crate) use fixup::{FlagFixup, load_image, pack, restore_saved, unpack};
pub(crate) use recipe::FlagRecipe;

/// Bits of flags in the byte that LAHF loads.
pub(crate) const CF: u8 = 0;
pub(crate) const ZF: u8 = 6;

/// The location of the guest's arithmetic flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlagsLocation {
    /// In the frame.
    Saved,
    /// In the host's flags.
    Host(FlagFixup),
    /// Nowhere: code that needs them recomputes them.
    Lost(FlagRecipe),
}

/// The state of the flags at one place of a block.
#[derive(Debug)]
pub(crate) struct Flags {
    location: FlagsLocation,
    /// Recomputes flags that are in the host's, if a TLB lookup may overwrite them.
    recipe: Option<FlagRecipe>,
}

impl Flags {
    /// Returns the state at the start of a block, where the flags are in the frame.
    pub(crate) fn at_start() -> Self {
        Self {
            location: FlagsLocation::Saved,
            recipe: None,
        }
    }

    pub(crate) fn location(&self) -> FlagsLocation {
        self.location
    }

    /// Continues where the flags are at `location`: at the start of a cold path.
    pub(crate) fn resume_at(&mut self, location: FlagsLocation) {
        self.location = location;
    }

    /// Notes that the instruction just emitted has set the host's flags, which `fixup` turns into
    /// the guest's. `recipe` recomputes them, if a TLB lookup may overwrite them.
    pub(crate) fn set_in_host(&mut self, fixup: FlagFixup, recipe: Option<FlagRecipe>) {
        (self.location, self.recipe) = (FlagsLocation::Host(fixup), recipe);
    }

    /// Saves the flags, unless they are. Clobbers SCRATCH and the host's flags.
    pub(crate) fn save(&mut self, a: &mut Assembler) {
        match self.location {
            FlagsLocation::Saved => {}
            FlagsLocation::Host(fixup) => fixup::save(a, fixup),
            FlagsLocation::Lost(recipe) => recipe.save(a),
        }
        self.location = FlagsLocation::Saved;
    }

    /// Frees the host's flags for a TLB lookup. Guest flags that they contain are dropped if there
    /// is a recipe, and saved otherwise. Guest flags that an earlier lookup has dropped are
    /// recomputed and saved. Clobbers SCRATCH.
    pub(crate) fn release_host(&mut self, a: &mut Assembler) {
        match (self.location, self.recipe) {
            (FlagsLocation::Host(_), Some(recipe)) => self.location = FlagsLocation::Lost(recipe),
            _ => self.save(a),
        }
    }

    /// Restores the guest's flags `mask`, of [`RflagsBits`], to the host's flags, unless they are
    /// there. Clobbers SCRATCH.
    pub(crate) fn restore(&mut self, a: &mut Assembler, mask: u32) {
        let is_there = match self.location {
            FlagsLocation::Saved | FlagsLocation::Lost(_) => false,
            FlagsLocation::Host(FlagFixup::None | FlagFixup::ClearAf) => true,
            FlagsLocation::Host(_) => mask & RflagsBits::OF == 0,
        };
        if !is_there {
            self.save(a);
            fixup::restore_saved(a, 0);
            self.set_in_host(FlagFixup::None, None);
        }
    }

    /// Returns from a cold path to code that expects the flags at `location`. The path has called
    /// `exec`, after which they are both in the frame and in the host's flags.
    pub(crate) fn return_to(&mut self, location: FlagsLocation) {
        debug_assert_eq!(self.location, FlagsLocation::Saved);
        self.location = location;
    }

    /// Saves the host's flags, which `fixup` turns into the guest's.
    pub(crate) fn save_host(&mut self, a: &mut Assembler, fixup: FlagFixup) {
        fixup::save(a, fixup);
        self.location = FlagsLocation::Saved;
    }

    /// Saves the host's flags after a shift by CL, unless its count, masked with `mask`, is zero:
    /// the flags in the frame are still the guest's then.
    pub(crate) fn save_shifted_by_cl(&mut self, a: &mut Assembler, fixup: FlagFixup, mask: u8) {
        fixup::load(a, fixup);
        a.byte_test(Byte::CL, mask);
        let unchanged = a.label();
        a.jump_if(cond::E, unchanged);
        fixup::store(a);
        a.bind(unchanged);
        self.location = FlagsLocation::Saved;
    }

    /// Replaces one flag in the frame, `bit` of those that LAHF loads, by whether the host's flags
    /// meet `condition`. Clobbers SCRATCH and the host's flags.
    pub(crate) fn save_condition(&mut self, a: &mut Assembler, condition: u8, bit: u8) {
        fixup::save_one(a, condition, bit);
        self.location = FlagsLocation::Saved;
    }

    /// Replaces CF and OF in the frame by the host's after a rotate by one. Clobbers SCRATCH and
    /// the host's flags.
    pub(crate) fn save_of_rotate(&mut self, a: &mut Assembler) {
        fixup::save_of_rotate(a);
        self.location = FlagsLocation::Saved;
    }

    /// Saves the flags that follow from `result`, with the host's CF and without OF and AF.
    /// `wide`: the result has 64 bits, else 32. Clobbers SCRATCH, POINTER and the host's flags.
    pub(crate) fn save_of_result(&mut self, a: &mut Assembler, result: Location, wide: bool) {
        fixup::save_of_result(a, result, wide);
        self.location = FlagsLocation::Saved;
    }

    /// Saves the flags of a product whose lower half is `result`: CF and OF are the host's OF.
    /// `wide`: the result has 64 bits, else 32. Clobbers SCRATCH, POINTER and the host's flags.
    pub(crate) fn save_of_product(&mut self, a: &mut Assembler, result: Location, wide: bool) {
        fixup::save_of_product(a, result, wide);
        self.location = FlagsLocation::Saved;
    }
}
