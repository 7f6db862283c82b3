//! Errors of saving and restoring the state of a device.

use thiserror::Error;

/// Why the state of a device cannot be saved or restored.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StateError {
    /// The device holds something that a state cannot contain, such as an open file of the host.
    #[error("cannot save the state of {device}: {reason}")]
    Save {
        /// The device.
        device: String,
        /// What it holds.
        reason: String,
    },
    /// The state does not fit the device, or is one that the device never has.
    #[error("cannot restore the state of {device}: {reason}")]
    Restore {
        /// The device.
        device: String,
        /// What is wrong with the state.
        reason: String,
    },
}

impl StateError {
    /// The state of `device` cannot be saved for `reason`.
    pub fn save(device: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Save {
            device: device.into(),
            reason: reason.into(),
        }
    }

    /// The state of `device` cannot be restored for `reason`.
    pub fn restore(device: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Restore {
            device: device.into(),
            reason: reason.into(),
        }
    }
}

/// Checks a value of a state that is restored to `device`: `field` can be `value` only if `valid`.
pub(crate) fn check(
    device: &str,
    field: &str,
    value: impl Into<u64>,
    valid: bool,
) -> Result<(), StateError> {
    if valid {
        return Ok(());
    }
    let value = value.into();
    Err(StateError::restore(
        device,
        format!("{field} cannot be {value:#x}"),
    ))
}

/// Checks that `value` has no bits outside `mask`, as [`check`] does.
pub(crate) fn check_bits(
    device: &str,
    field: &str,
    value: impl Into<u64>,
    mask: u64,
) -> Result<(), StateError> {
    let value = value.into();
    check(device, field, value, value & !mask == 0)
}
