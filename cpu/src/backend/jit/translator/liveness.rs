//! Flags that the guest overwrites before anything can observe them.

use crate::backend::jit::flags::{FlagFixup, FlagRecipe};
use crate::backend::jit::forms::direct::Effect;
use crate::backend::jit::forms::operand::accesses_memory;
use crate::backend::jit::translator::{Item, Translator};

impl Translator<'_> {
    /// Returns whether nothing can observe the flags between this instruction and the next that
    /// writes all of them. `rest` is the rest of the block.
    pub(crate) fn flags_are_dead(&self, rest: &[Item]) -> bool {
        // With `--jit check`, native code can end before any instruction of `rest`, and its flags
        // are compared there.
        if self.context.checks {
            return false;
        }
        for item in rest {
            let Some(direct) = item.direct else {
                return false;
            };
            if accesses_memory(&item.decoded, &item.insn) || direct.reads != 0 {
                return false;
            }
            match direct.effect {
                Effect::Writes(_) => return true,
                Effect::Keeps => {}
                _ => return false,
            }
        }
        false
    }

    /// Returns a recipe for the flags that `item` sets, if `rest` overwrites all of them before it
    /// reads any, and the recipe's registers are intact at each TLB lookup before that.
    pub(crate) fn find_flag_recipe(
        &mut self,
        item: &Item,
        fixup: FlagFixup,
        rest: &[Item],
    ) -> Option<FlagRecipe> {
        // See `flags_are_dead`.
        if self.context.checks {
            return None;
        }
        let recipe = FlagRecipe::for_instruction(&item.decoded, fixup)?;
        let mut is_overwritten = false;
        for item in rest {
            let direct = item.direct.filter(|direct| direct.reads == 0)?;
            if is_overwritten && accesses_memory(&item.decoded, &item.insn) {
                return None;
            }
            match direct.effect {
                Effect::Writes(_) => return Some(recipe),
                Effect::Keeps => {
                    is_overwritten |= recipe.is_overwritten_by(&item.decoded, self.info);
                }
                _ => return None,
            }
        }
        // The flags are live at the end of the block.
        None
    }
}
