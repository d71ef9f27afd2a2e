//! The configuration of `serve`: file, then environment, then flags.

use crate::cli::{Engine, MaybeAddr, ServeArgs, Switch};
use crate::failure::Failure;
use crate::files;
use crate::own_target::wrong_config;
use kbtp_target::{ConfigError, DirectConfig, EngineChoice, TargetConfig, TenantConfig};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::path::Path;

/// What the tenant file holds.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TenantFile {
    tenants: Vec<TenantConfig>,
}

/// The configuration that `args` (flags and environment) and the file they name make, checked.
///
/// # Errors
/// [`Failure`] names the file and line, or the key and its value, and the remedy.
pub(crate) fn effective(args: &ServeArgs) -> Result<TargetConfig, Failure> {
    let mut config = match &args.config {
        Some(path) => {
            let mut config = target(path, &read(path)?)?;
            beside(path, &mut config.tenants);
            config
        }
        None => TargetConfig::default(),
    };
    lay_over(&mut config, args);
    if let Some(path) = &args.tenant_file {
        let mut named = tenants(path, &read(path)?)?;
        if named.is_empty() {
            // With no tenants nobody is authenticated: the contrary of what the flag asks for.
            return Err(Failure::usage(
                format_args!("{} names no tenants", path.display()),
                "add them ([[tenants]] with name and key), or leave out --tenant-file to authenticate nobody",
            ));
        }
        beside(path, &mut named);
        config.tenants.extend(named);
    }
    config.load_keys().map_err(|e| wrong(args, &e))?;
    config.validate().map_err(|e| wrong(args, &e))?;
    Ok(config)
}

/// A wrong configuration, and the variable of the environment that makes it so.
fn wrong(args: &ServeArgs, error: &ConfigError) -> Failure {
    let failure = wrong_config(error);
    let field = match error.key {
        "default_quota" => "quota",
        key => key,
    };
    if args.from_environment.iter().any(|f| f == field) {
        let variable = format!("KBTP_{}", field.to_uppercase());
        failure.and(format_args!(
            "the value is that of {variable} in the environment"
        ))
    } else {
        failure
    }
}

/// Key files are looked for from the directory of the file that names them, wherever the command is run.
fn beside(file: &Path, tenants: &mut [TenantConfig]) {
    let directory = file.parent().unwrap_or_else(|| Path::new(""));
    for key_file in tenants.iter_mut().filter_map(|t| t.key_file.as_mut()) {
        *key_file = directory.join(&*key_file);
    }
}

fn lay_over(config: &mut TargetConfig, args: &ServeArgs) {
    fn set<T: Clone>(value: &mut T, flag: Option<&T>) {
        if let Some(given) = flag {
            value.clone_from(given);
        }
    }
    if !args.listen.is_empty() {
        config.listen.clone_from(&args.listen);
    }
    set(&mut config.block_size, args.block_size.as_ref());
    set(&mut config.blocks, args.blocks.as_ref());
    set(&mut config.ticket_timeout, args.ticket_timeout.as_ref());
    set(&mut config.lease, args.lease.as_ref());
    config.handles = args.handles.or(config.handles);
    config.default_quota = args.quota.or(config.default_quota);
    config.workers = args.workers.or(config.workers);
    if let Some(engine) = args.engine {
        config.engine = match engine {
            Engine::Software => EngineChoice::Software,
            Engine::Chain => EngineChoice::Chain,
        };
    }
    if let Some(nic) = &args.nic {
        config.nic = Some(nic.clone());
    }
    if let Some(direct) = args.direct {
        let on = direct == Switch::On;
        config.direct = DirectConfig {
            load: on,
            alloc: on,
        };
    }
    match args.admin {
        Some(MaybeAddr::At(addr)) => config.admin = Some(addr),
        Some(MaybeAddr::Off) => config.admin = None,
        None => {}
    }
    if args.standalone {
        config.agent = None;
    } else if let Some(socket) = &args.agent {
        config.agent = Some(socket.clone());
    }
    config.allow_unauthenticated |= args.allow_unauthenticated;
}

/// The configuration that a file's text is, not yet checked.
///
/// # Errors
/// [`Failure`] names the file and line.
pub fn target(path: &Path, text: &str) -> Result<TargetConfig, Failure> {
    parse_toml(path, text)
}

/// The tenants that a tenant file's text names, not yet checked.
///
/// # Errors
/// [`Failure`] names the file and line.
pub fn tenants(path: &Path, text: &str) -> Result<Vec<TenantConfig>, Failure> {
    let file: TenantFile = parse_toml(path, text)?;
    Ok(file.tenants)
}

fn read(path: &Path) -> Result<String, Failure> {
    files::read_text(path, files::SETTINGS_MAX)
        .map_err(|e| Failure::file("read the configuration", path, &e))
}

fn parse_toml<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T, Failure> {
    toml::from_str(text).map_err(|e| {
        let before = e.span().and_then(|s| text.get(..s.start)).unwrap_or("");
        let line = before.matches('\n').count() + 1;
        Failure::usage(
            format_args!("{}:{line}: {}", path.display(), e.message()),
            "correct that line; docs/target.toml has every key, kbtp serve --help the form of the values",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kbtp_harness::Scratch;
    use std::path::PathBuf;

    fn file(text: &str) -> (Scratch, PathBuf) {
        let scratch = Scratch::new();
        let path = scratch.at("kbtp.toml");
        std::fs::write(&path, text).unwrap();
        (scratch, path)
    }

    #[test]
    fn flags_win_over_the_file_which_wins_over_the_default() {
        let (_scratch, path) = file("block_size = \"4KiB\"\nblocks = 64\ncredits = 7\n");
        let args = ServeArgs {
            config: Some(path),
            blocks: Some(128),
            direct: Some(Switch::Off),
            admin: Some(MaybeAddr::Off),
            ..ServeArgs::default()
        };
        let config = effective(&args).unwrap();
        assert_eq!(config.block_size, 4096);
        assert_eq!(config.blocks, 128);
        assert_eq!(config.credits, 7);
        assert_eq!(config.admin, None);
        assert!(!config.direct.load && !config.direct.alloc);
        let default = effective(&ServeArgs::default()).unwrap();
        assert_eq!((default.block_size, default.blocks), (65_536, 1024));
        assert_eq!(default.quota_default(), 256);
        assert_eq!(default.listen[0].to_string(), "127.0.0.1:7471");
        assert!(default.direct.load && default.direct.alloc);
    }

    #[test]
    fn standalone_overrules_the_agent_of_the_file() {
        let (_scratch, path) = file("agent = \"/run/kbtp.sock\"\n");
        let mut args = ServeArgs {
            config: Some(path),
            ..ServeArgs::default()
        };
        assert!(effective(&args).unwrap().agent.is_some());
        args.standalone = true;
        assert!(effective(&args).unwrap().agent.is_none());
    }

    #[test]
    fn errors_name_file_and_line_or_key_and_value() {
        let (_scratch, path) = file("blocks = 64\nblock_sise = 1\n");
        let args = ServeArgs {
            config: Some(path.clone()),
            ..ServeArgs::default()
        };
        let said = effective(&args).unwrap_err().to_string();
        assert!(
            said.contains(":2: ") && said.contains("block_sise"),
            "{said}"
        );
        let args = ServeArgs {
            blocks: Some(0),
            ..ServeArgs::default()
        };
        let said = effective(&args).unwrap_err().to_string();
        assert!(said.starts_with("blocks = 0: "), "{said}");
        let args = ServeArgs {
            listen: vec!["0.0.0.0:1".parse().unwrap()],
            ..ServeArgs::default()
        };
        let said = effective(&args).unwrap_err().to_string();
        assert!(said.contains("allow_unauthenticated"), "{said}");
    }

    #[test]
    fn a_key_file_is_looked_for_beside_the_file_that_names_it() {
        let (_scratch, tenants) = file("[[tenants]]\nname = \"blue\"\nkey_file = \"blue.key\"\n");
        let key = tenants.with_file_name("blue.key");
        std::fs::write(key, "000102030405060708090a0b0c0d0e0f\n").unwrap();
        let by_flag = ServeArgs {
            tenant_file: Some(tenants.clone()),
            ..ServeArgs::default()
        };
        let by_config = ServeArgs {
            config: Some(tenants),
            ..ServeArgs::default()
        };
        for args in [by_flag, by_config] {
            let config = effective(&args).unwrap();
            assert_eq!(config.tenants[0].key.as_ref().unwrap().as_bytes().len(), 16);
        }
    }

    #[test]
    fn a_tenant_file_without_tenants_is_refused() {
        let (_scratch, nobody) = file("tenants = []\n");
        let args = ServeArgs {
            tenant_file: Some(nobody),
            ..ServeArgs::default()
        };
        let said = effective(&args).unwrap_err().to_string();
        assert!(said.contains("names no tenants"), "{said}");
    }

    #[test]
    fn tenants_come_from_their_file() {
        let (_scratch, path) =
            file("[[tenants]]\nname = \"blue\"\nkey = \"000102030405060708090a0b0c0d0e0f\"\n");
        let args = ServeArgs {
            tenant_file: Some(path),
            ..ServeArgs::default()
        };
        let config = effective(&args).unwrap();
        assert_eq!(config.tenants[0].name, "blue");
        assert!(config.auth_required());
    }
}
