//! A client of the CPU plugin, which is installed where it is missing.

use phalanx_pjrt::{CPU_PLUGIN, Client, Installer, OptionValue, Platform, Plugin, PluginSearch};

/// An error of any kind, for the notice that nothing is tested.
pub(crate) type Failure = Box<dyn std::error::Error>;

/// What installs, offline where the tests shall be.
pub(crate) fn installer(search: &PluginSearch) -> Result<Installer, Failure> {
    let mut installer = Installer::new(search.cache_dir().ok_or("no cache folder")?);
    installer.offline = std::env::var_os("PHALANX_OFFLINE").is_some();
    Ok(installer)
}

/// The client, started with the plugin's `options`.
pub(crate) fn client(options: &[(&str, OptionValue)]) -> Result<Client, Failure> {
    let search = PluginSearch::from_process();
    let plugin = match search.find(Platform::Cpu, None) {
        Ok(found) => found.path,
        Err(_) => installer(&search)?.install(&CPU_PLUGIN)?,
    };
    Ok(Client::new(&Plugin::load(plugin)?, options)?)
}
