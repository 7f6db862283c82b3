//! Writes the code behind that of a block.

use crate::backend::jit::calls::part::Part;
use crate::backend::jit::flags::FlagsLocation;
use crate::backend::jit::registers::map::{POINTER, SCRATCH};
use crate::backend::jit::translator::Translator;
use crate::backend::jit::translator::cold::ColdPath;

impl Translator<'_> {
    /// Writes the code behind the block: first the branches that are taken, which belong to the hot
    /// section and add other cold paths.
    pub(crate) fn write_cold_paths(&mut self) {
        for is_rare in [false, true] {
            if is_rare {
                self.asm.split();
            }
            let mut next = 0;
            while let Some(&path) = self.cold.get(next) {
                if matches!(path, ColdPath::Taken { .. }) != is_rare {
                    self.write_cold_path(path);
                }
                next += 1;
            }
        }
    }

    fn write_cold_path(&mut self, path: ColdPath) {
        match path {
            ColdPath::Execute {
                at,
                back,
                first,
                count,
                before,
                after,
                vectors,
            } => {
                self.asm.bind(at);
                self.flags.resume_at(before);
                self.vectors = vectors;
                self.flags.save(self.asm);
                self.vectors.unload(self.asm);
                self.call(first, count);
                self.flags.return_to(after);
                self.vectors.return_to(self.asm, vectors);
                self.asm.jump(back);
            }
            ColdPath::Finish { at, first, vectors } => {
                self.asm.bind(at);
                self.flags.resume_at(FlagsLocation::Saved);
                self.vectors = vectors;
                self.vectors.unload(self.asm);
                self.call(first, Part::REST);
                self.asm.undefined();
            }
            ColdPath::Taken {
                at,
                branch,
                target,
                flags,
                vectors,
            } => {
                self.asm.bind(at);
                self.flags.resume_at(flags);
                self.vectors = vectors;
                self.jump(branch, target);
            }
            ColdPath::Record { at, back, number } => {
                self.asm.bind(at);
                self.asm.mov_imm(SCRATCH, number.into());
                self.asm.call_address(self.context.routines.record);
                self.asm.jump(back);
            }
            ColdPath::Watched(lookup) => self.write_watched_lookup(&lookup),
            ColdPath::Exit { at, code, routine } => {
                self.asm.bind(at);
                self.asm.mov_imm(SCRATCH, code.into());
                self.asm.jump_address(routine);
            }
            ColdPath::Leave { at, rip, code } => {
                self.asm.bind(at);
                self.asm.mov_imm(POINTER, rip);
                self.asm.mov_imm(SCRATCH, code.into());
                self.asm.jump_address(self.context.routines.exit);
            }
        }
    }
}
