//! A client whose programs may call oneDNN's kernels.

mod plugin;

use phalanx_kernels::{Kernels, ONEDNN};
use phalanx_pjrt::{Client, OptionValue, PluginSearch};

/// The client, started with the plugin's `options`, and the kernels; both libraries are installed where they are missing.
pub(crate) fn start(options: &[(&str, OptionValue)]) -> Result<(Client, Kernels), plugin::Failure> {
    let search = PluginSearch::from_process();
    plugin::installer(&search)?.install(&ONEDNN)?;
    let _ = phalanx_kernels::set_openmp_wait_policy();
    let client = plugin::client(options)?;
    let kernels = Kernels::find(&search, None)?;
    kernels.register(&client)?;
    // A second time changes nothing.
    kernels.register(&client)?;
    Ok((client, kernels))
}
