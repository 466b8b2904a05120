//! The CPU kernels of an engine: found, or installed, when the first program that gains from them is compiled.

use std::path::PathBuf;
use std::sync::OnceLock;

use phalanx_graph::{Bf16Matmul, HostMatmul, KernelSupport, Program};
use phalanx_kernels::{
    AmxFeatures, KernelError, Kernels, ONEDNN, Support, has_fast_bf16, register_all_reduce,
    register_lstm, register_matmul, register_reductions, register_rows, register_softmax,
};
use phalanx_pjrt::{Client, Platform, PluginSearch};

use super::{EngineOptions, Notice, install};
use crate::{Error, Result};

/// Turns the kernels off for every engine that does not name them.
const VARIABLE: &str = "PHALANX_KERNELS";

/// Whether programs for the CPU call kernels that are not XLA's where those are faster: oneDNN's, and of
/// `phalanx-kernels` the sums over replicas, the products, the long short-term memories, the rows of large tables, softmax, and the reductions of 16-bit programs, which need no library.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum KernelsMode {
    /// They do when the library is found or can be installed; otherwise, after one notice, XLA's own serve. The environment variable
    /// `PHALANX_KERNELS=off` turns this into [`KernelsMode::Off`].
    #[default]
    Auto,
    /// As [`KernelsMode::Auto`], also for programs too small to gain from them: for tests.
    Always,
    /// They do not.
    Off,
    /// They do, with this library; it is an error when it cannot be used. Programs of other engines of the process call the library
    /// that was loaded first.
    Path(PathBuf),
}

/// The kernels of an engine.
pub(super) struct EngineKernels {
    mode: KernelsMode,
    offline: bool,
    notice: Notice,
    /// `None` inside: they were searched for and not found.
    support: OnceLock<Option<Support>>,
    /// Whether the all-reduce is registered.
    sums: OnceLock<bool>,
    /// Whether the matrix product is registered.
    products: OnceLock<bool>,
    /// Whether the steps of long short-term memories are registered.
    lstm: OnceLock<bool>,
    /// Whether reductions of columns and rows are registered.
    reductions: OnceLock<bool>,
    /// Whether rows of large tables are registered.
    rows: OnceLock<bool>,
    /// Whether the parts of softmax are registered.
    softmax: OnceLock<bool>,
}

impl EngineKernels {
    pub(super) fn new(options: &EngineOptions, search: &PluginSearch) -> Result<Self> {
        let mode = match &options.kernels {
            _ if options.platform != Platform::Cpu => KernelsMode::Off,
            KernelsMode::Auto => mode_of_variable(search)?,
            other => other.clone(),
        };
        Ok(Self {
            mode,
            offline: options.offline,
            notice: std::sync::Arc::clone(&options.notice),
            support: OnceLock::new(),
            sums: OnceLock::new(),
            products: OnceLock::new(),
            lstm: OnceLock::new(),
            reductions: OnceLock::new(),
            rows: OnceLock::new(),
            softmax: OnceLock::new(),
        })
    }

    /// Whether no program has any: so it is for all platforms but the CPU.
    pub(super) fn are_off(&self) -> bool {
        self.mode == KernelsMode::Off
    }

    /// The kernels that the program may call, if it gains from them; searched for once.
    pub(super) fn support(
        &self,
        client: &Client,
        program: &Program,
    ) -> Result<Option<KernelSupport>> {
        // The compiler cannot divide a call among devices.
        let divided = program.mesh.is_some();
        let gains = self.mode == KernelsMode::Always || program.gains_from_kernels();
        if self.mode == KernelsMode::Off || divided || !gains {
            return Ok(None);
        }
        let support = self.loaded(client)?;
        Ok(support.map(|support| KernelSupport {
            tiles: support.tiles,
        }))
    }

    /// Which products of bf16 of this program are calls of the library.
    pub(super) fn bf16_matmul(&self, client: &Client, program: &Program) -> Result<Bf16Matmul> {
        if self.mode == KernelsMode::Off || !program.gains_from_bf16_matmul() {
            return Ok(Bf16Matmul::Never);
        }
        bf16_matmul_by(AmxFeatures::detect(), || {
            let support = self.loaded(client)?;
            Ok(support.is_some_and(|support| support.amx_bf16))
        })
    }

    /// What the library can do, found and registered when first asked; nothing where there is none.
    fn loaded(&self, client: &Client) -> Result<Option<Support>> {
        if let Some(known) = self.support.get() {
            return Ok(*known);
        }
        let support = match self.start(client) {
            Ok(kernels) => Some(kernels.support()),
            Err(error) if matches!(self.mode, KernelsMode::Path(_)) => return Err(error),
            Err(error) => {
                (self.notice)(&format!(
                    "convolutions, and with AMX products of bf16, run on XLA's own kernels, which are slower: {error}"
                ));
                None
            }
        };
        Ok(*self.support.get_or_init(|| support))
    }

    /// Whether replicas of this program exchange sums by our all-reduce.
    pub(super) fn supports_all_reduce(&self, client: &Client, program: &Program) -> bool {
        let gains = || program.exchanges_only_sums();
        self.calls(&self.sums, gains, || register_all_reduce(client))
    }

    /// Which matrix products of this program are calls of ours, of those that are to be.
    pub(super) fn host_matmul(
        &self,
        client: &Client,
        program: &Program,
        wanted: HostMatmul,
    ) -> HostMatmul {
        let gains = || program.gains_from_host_matmul(wanted, has_fast_bf16());
        match self.calls(&self.products, gains, || register_matmul(client)) {
            true => wanted,
            false => HostMatmul::Never,
        }
    }

    /// Whether long short-term memories of this program are calls of ours.
    pub(super) fn supports_lstm(&self, client: &Client, program: &Program) -> bool {
        let gains = || program.gains_from_host_lstm();
        self.calls(&self.lstm, gains, || register_lstm(client))
    }

    /// Whether sums of columns and reductions of rows of this program are calls of ours.
    pub(super) fn supports_reductions(&self, client: &Client, program: &Program) -> bool {
        let gains = || program.gains_from_host_reductions();
        self.calls(&self.reductions, gains, || register_reductions(client))
    }

    /// Whether rows of large tables of this program are taken by calls of ours.
    pub(super) fn supports_rows(&self, client: &Client, program: &Program) -> bool {
        let gains = || program.gains_from_host_rows();
        self.calls(&self.rows, gains, || register_rows(client))
    }

    /// Whether the parts of softmax of this program are calls of ours.
    pub(super) fn supports_softmax(&self, client: &Client, program: &Program) -> bool {
        let gains = || program.gains_from_host_softmax();
        self.calls(&self.softmax, gains, || register_softmax(client))
    }

    /// Whether calls that need no library are made: by this mode, by a program that gains from them, where `known` has that they could be
    /// registered.
    fn calls(
        &self,
        known: &OnceLock<bool>,
        gains: impl FnOnce() -> bool,
        register: impl FnOnce() -> std::result::Result<(), KernelError>,
    ) -> bool {
        self.mode != KernelsMode::Off && gains() && *known.get_or_init(|| register().is_ok())
    }

    /// Finds or installs the library and registers its kernels; the registration keeps them.
    fn start(&self, client: &Client) -> Result<Kernels> {
        let search = PluginSearch::from_process();
        let explicit = match &self.mode {
            KernelsMode::Path(path) => Some(path.as_path()),
            KernelsMode::Auto | KernelsMode::Always | KernelsMode::Off => None,
        };
        let kernels = match Kernels::find(&search, explicit) {
            Err(KernelError::NotFound { .. }) => {
                self.install(&search)?;
                Kernels::find(&search, None)
            }
            other => other,
        };
        let kernels = kernels.map_err(Error::device)?;
        kernels.register(client).map_err(Error::device)?;
        Ok(kernels)
    }

    fn install(&self, search: &PluginSearch) -> Result<()> {
        let cache = search.cache_dir().ok_or_else(|| {
            Error::Device("there is no folder for the kernel library: set PHALANX_CACHE_DIR".into())
        })?;
        let title = "the kernel library oneDNN";
        install(&ONEDNN, title, cache, self.offline, &self.notice).map(drop)
    }
}

/// Which products of bf16 are calls on this processor: the large ones with AMX, where XLA's own take four times as long. The library
/// is asked whether it may use AMX only where the processor has it.
fn bf16_matmul_by(
    processor: AmxFeatures,
    library_may: impl FnOnce() -> Result<bool>,
) -> Result<Bf16Matmul> {
    Ok(match processor.multiplies_bf16() && library_may()? {
        true => Bf16Matmul::WhereLarge,
        false => Bf16Matmul::Never,
    })
}

fn mode_of_variable(search: &PluginSearch) -> Result<KernelsMode> {
    let value = search.environment.get(std::ffi::OsStr::new(VARIABLE));
    match value.map(|value| value.to_string_lossy()).as_deref() {
        None | Some("" | "auto") => Ok(KernelsMode::Auto),
        Some("off") => Ok(KernelsMode::Off),
        Some(other) => Err(Error::user(format!(
            "{VARIABLE} must be auto or off, got `{other}`"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(value: &str) -> Result<KernelsMode> {
        mode_of_variable(&PluginSearch {
            environment: [(VARIABLE.into(), value.into())].into(),
            root: "/nowhere".into(),
        })
    }

    #[test]
    fn products_of_bf16_are_calls_with_amx_alone() {
        let with_amx = AmxFeatures::new(u32::MAX, u64::MAX);
        let by = |library: bool| bf16_matmul_by(with_amx, || Ok(library)).unwrap();
        assert_eq!(by(true), Bf16Matmul::WhereLarge);
        assert_eq!(by(false), Bf16Matmul::Never);
        // Without it the library is neither loaded nor installed.
        for without in [AmxFeatures::new(0, u64::MAX), AmxFeatures::new(u32::MAX, 0)] {
            let asked = || panic!("the library is asked");
            assert_eq!(bf16_matmul_by(without, asked).unwrap(), Bf16Matmul::Never);
        }
        let refused = bf16_matmul_by(with_amx, || Err(Error::user("no library")));
        assert!(refused.unwrap_err().to_string().contains("no library"));
    }

    #[test]
    fn the_variable_turns_them_off() {
        assert_eq!(mode("off").unwrap(), KernelsMode::Off);
        assert_eq!(mode("auto").unwrap(), KernelsMode::Auto);
        assert_eq!(mode("").unwrap(), KernelsMode::Auto);
        let error = mode("Of").unwrap_err().to_string();
        assert_eq!(error, "PHALANX_KERNELS must be auto or off, got `Of`");
    }
}
