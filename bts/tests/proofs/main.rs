//! Properties that the recorder and its window have for all values of their arguments.
//!
//! `ci/suite prove` compiles this file, with the crate, to LLVM's intermediate representation and
//! lets Z3 search for arguments with which a `prove_` function returns `false` or panics; there are
//! none. Such a function has no loop, and takes integers. It returns `true` for arguments that it
//! says nothing about. The tests here call it with random arguments, too.
//!
//! A function whose name begins with `refute_` is wrong for some argument: Z3 must find it.

/// Defines properties of the registers and fields `given` and of one more integer, as functions
/// that `ci/suite prove` finds, and tests that call them with random arguments.
macro_rules! properties {
    ($($(#[$doc:meta])* fn $name:ident($given:ident, $other:ident) $body:block)*) => {
        $(
            $(#[$doc])*
            // SAFETY: no other symbol has this name.
            #[unsafe(no_mangle)]
            pub extern "C" fn $name(
                ds_area: u64,
                debugctl: u64,
                base: u64,
                index: u64,
                absolute_maximum: u64,
                threshold: u64,
                $other: u64,
            ) -> bool {
                let fields = vbts_bts::BtsFields { base, index, absolute_maximum, threshold };
                let $given = Given { processor: NEHALEM, ds_area, debugctl, fields };
                $body
            }
        )*

        #[cfg(test)]
        mod random {
            use proptest::prelude::*;

            proptest! {
                $(#[test]
                fn $name((given, other) in crate::random::given()) {
                    let f = given.fields;
                    let holds = super::$name(
                        given.ds_area,
                        given.debugctl,
                        f.base,
                        f.index,
                        f.absolute_maximum,
                        f.threshold,
                        other,
                    );
                    prop_assert!(holds || stringify!($name).starts_with("refute_"));
                })*
            }
        }
    };
}

#[cfg(test)]
mod random;
mod recorder;
mod values;
mod window;
