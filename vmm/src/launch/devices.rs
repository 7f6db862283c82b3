//! The devices of a configuration: shared directories and files, disks, networks, random numbers.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use anyhow::Context as _;
use vbts_devices::disk::Disk;
use vbts_devices::ninep::{Access, OpenFiles};
use vbts_devices::tap::{Tap, TapError};
use vbts_devices::virtio::entropy::Source;
use vbts_protocol::{FILES_TAG, ROOT_TAG};

use super::Launch;
use crate::config::{DiskConfig, NetworkConfig, RandomSource, ShareConfig};
use crate::network::Network;
use vbts_host::exit::Failure;

/// Seed of [`RandomSource::Fixed`]. The value has no meaning.
const FIXED_SEED: u64 = 1;

/// A directory that is shared with the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedDirectory {
    /// 9P mount tag.
    pub tag: String,
    /// Absolute path on the host.
    pub path: PathBuf,
    /// The guest may write.
    pub writable: bool,
}

impl Launch {
    /// Shares the configured root, if there is one, read-only.
    ///
    /// # Errors
    /// The directory cannot be opened.
    pub fn share_root(&mut self) -> Result<(), Failure> {
        if let Some(root) = &self.config.root {
            self.board.add_share(ROOT_TAG, root, Access::ReadOnly)?;
        }
        Ok(())
    }

    /// The directories of `--share`.
    ///
    /// # Errors
    /// A directory does not exist.
    pub fn shares(&self) -> Result<Vec<SharedDirectory>, Failure> {
        let share = |(
            n,
            ShareConfig {
                directory,
                writable,
            },
        ): (usize, &ShareConfig)| {
            let path = directory
                .canonicalize()
                .with_context(|| format!("--share: cannot open {}", directory.display()))?;
            Ok(SharedDirectory {
                tag: format!("share{n}"),
                path,
                writable: *writable,
            })
        };
        self.config.shares.iter().enumerate().map(share).collect()
    }

    /// Shares `directories`.
    ///
    /// # Errors
    /// A directory cannot be opened, or the board has no room.
    pub fn share(&mut self, directories: &[SharedDirectory]) -> Result<(), Failure> {
        for SharedDirectory {
            tag,
            path,
            writable,
        } in directories
        {
            let access = if *writable {
                Access::ReadWrite
            } else {
                Access::ReadOnly
            };
            let refused = self.board.add_share(tag, path, access)?;
            self.shared_writes.add(path.clone(), refused);
        }
        Ok(())
    }

    /// Adds the shares of a recorded run, by their tags in the order of their devices.
    ///
    /// # Errors
    /// The board has no room.
    pub fn add_replayed_shares(&mut self, tags: &[String]) -> Result<(), Failure> {
        let mut tags = tags.iter();
        Ok(tags.try_for_each(|tag| self.board.add_replayed_share(tag))?)
    }

    /// Gives the guest `files`, which this process has open.
    ///
    /// # Errors
    /// The board has no room.
    pub fn share_open_files(&mut self, files: BTreeMap<u32, OwnedFd>) -> Result<(), Failure> {
        if files.is_empty() {
            return Ok(());
        }
        self.shares_open_files = true;
        Ok(self
            .board
            .add_open_files(FILES_TAG, OpenFiles::new(files))?)
    }

    /// Adds the configured disks.
    ///
    /// # Errors
    /// A disk cannot be opened, or the board has no room.
    pub fn add_disks(&mut self) -> Result<(), Failure> {
        for (n, DiskConfig { file, writable }) in self.config.disks.iter().enumerate() {
            let disk = Disk::open(file, *writable)
                .with_context(|| format!("--disk {}", file.display()))?;
            self.board.add_disk(disk, &format!("vbts-disk{n}"))?;
        }
        Ok(())
    }

    /// Adds the configured networks.
    ///
    /// # Errors
    /// A TAP device cannot be opened, or the board has no room.
    pub fn add_networks(&mut self) -> Result<Vec<Network>, Failure> {
        let connect = |NetworkConfig { tap, address }: &NetworkConfig| {
            let option = format!("--net tap={tap}");
            let opened = match Tap::open(tap) {
                Err(error @ TapError::Unsupported(_)) => {
                    return Err(Failure::Host(format!("{option}: {error}")));
                }
                opened => opened.context(option.clone())?,
            };
            Ok(Network::attach(&mut self.board, opened, *address).context(option)?)
        };
        self.config.networks.iter().map(connect).collect()
    }

    /// Adds the configured source of random numbers. The kernel's seed comes from the same source.
    ///
    /// # Errors
    /// The board has no room, or the host provides no random numbers.
    pub fn add_entropy(&mut self) -> Result<(), Failure> {
        let from_host = match self.config.random {
            RandomSource::Host => true,
            RandomSource::Fixed => false,
            RandomSource::Auto => self.uses_host_clock,
        };
        let mut source = match from_host {
            true => Source::Host,
            false => Source::Fixed(FIXED_SEED),
        };
        if source == Source::Host && source.fill(&mut self.rng_seed) != self.rng_seed.len() {
            return Err(Failure::Host(
                "this host provides no random numbers: getrandom(2) fails".into(),
            ));
        }
        Ok(self.board.add_entropy(source)?)
    }
}
