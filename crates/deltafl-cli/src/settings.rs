//! Settings of the long-running programs, `deltafl serve` and `deltafl device`, from flags, the
//! environment and a file.
//!
//! A flag has precedence over the environment, and the environment over the file. Every option has
//! the name of its flag: `--listen`, `DELTAFL_SERVE_LISTEN`, and `listen` in the file of `--config`
//! or `DELTAFL_CONFIG`. The entries of the file become arguments and are checked like them.

use std::ffi::OsString;
use std::ops::Range;
use std::path::{Path, PathBuf};

use clap::builder::BoolishValueParser;
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use miette::LabeledSpan;
use toml_edit::{Document, Value};

use crate::error::{BadInput, bad_input};

/// The commands that have settings.
const COMMANDS: [&str; 2] = ["serve", "device"];

/// The file with the settings of a program that runs for long.
#[derive(clap::Args, Debug)]
pub(crate) struct ConfigArgs {
    /// A TOML file with options by their names; variables such as DELTAFL_SERVE_LISTEN and
    /// DELTAFL_DEVICE_SERVER win over it, and flags over both
    #[arg(long, value_name = "FILE", env = "DELTAFL_CONFIG")]
    config: Option<PathBuf>,
}

/// Lets the environment set every option of the commands that have settings.
pub(crate) fn by_environment(mut command: Command) -> Command {
    for name in COMMANDS {
        command = command.mut_subcommand(name, |command| command.mut_args(|arg| with_variable(name, arg)));
    }
    command
}

/// Rejects variables that look like options of this command and are none: an owner's limit would
/// have no effect.
fn check_variables(command: &Command, set: impl Iterator<Item = OsString>) -> Result<(), BadInput> {
    let prefix = format!("DELTAFL_{}_", command.get_name()).to_uppercase();
    let known: Vec<&str> = settable(command).filter_map(|arg| arg.get_env()?.to_str()).collect();
    for name in set {
        let name = name.to_string_lossy();
        if name.starts_with(&prefix) && !known.contains(&&*name) {
            let distance = |known: &&&str| strsim::damerau_levenshtein(known, &name);
            let nearest = known.iter().min_by_key(distance).map_or("", |known| *known);
            return Err(bad_input(format!("the variable {name} names no option; the nearest is {nearest}")));
        }
    }
    Ok(())
}

fn with_variable(command: &str, arg: Arg) -> Arg {
    let flag = matches!(arg.get_action(), ArgAction::SetTrue);
    if arg.get_env().is_some() || !(flag || arg.get_action().takes_values()) {
        return arg;
    }
    let name = format!("DELTAFL_{command}_{}", option(&arg)).to_uppercase().replace('-', "_");
    let arg = arg.env(name).hide_env(true);
    if flag { arg.value_parser(BoolishValueParser::new()) } else { arg }
}

/// The name of an option: that of its flag, or of its place.
fn option(arg: &Arg) -> &str {
    arg.get_long().unwrap_or(arg.get_id().as_str())
}

/// The matches of a command line, with the settings file that it names.
pub(crate) fn matches(command: Command, given: Vec<OsString>) -> Result<ArgMatches, BadInput> {
    let Some(file) = SettingsFile::named_by(&command, &given)? else {
        return Ok(command.try_get_matches_from(given).unwrap_or_else(|e| e.exit()));
    };
    let mut all = given;
    all.extend(file.arguments.iter().cloned());
    command.try_get_matches_from(all).map_err(|error| file.blame(&error).unwrap_or_else(|| error.exit()))
}

/// A settings file, as arguments.
struct SettingsFile {
    path: PathBuf,
    text: String,
    arguments: Vec<OsString>,
    /// The options that it sets, and where. Without those that a flag or the environment sets.
    places: Vec<(String, Range<usize>)>,
}

impl SettingsFile {
    /// Reads the file that the command line or the environment names, if any.
    fn named_by(command: &Command, given: &[OsString]) -> Result<Option<Self>, BadInput> {
        // The file may contain the missing arguments, so none is required yet.
        let mut lenient = command.clone().ignore_errors(true);
        for name in COMMANDS {
            lenient = lenient.mut_subcommand(name, |command| {
                command.ignore_errors(true).mut_args(|arg| arg.required(false))
            });
        }
        let Ok(matches) = lenient.try_get_matches_from(given) else { return Ok(None) };
        let Some((name, matches)) = matches.subcommand().filter(|(name, _)| COMMANDS.contains(name)) else {
            return Ok(None);
        };
        // `deltafl device status` and the like have no settings.
        if matches.subcommand().is_some() {
            return Ok(None);
        }
        let command = command.find_subcommand(name).expect("it was matched");
        check_variables(command, std::env::vars_os().map(|(name, _)| name))?;
        let Some(path) = matches.try_get_one::<PathBuf>("config").ok().flatten() else { return Ok(None) };
        Self::read(path, command, matches).map(Some)
    }

    fn read(path: &Path, command: &Command, matches: &ArgMatches) -> Result<Self, BadInput> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| bad_input(format!("cannot read the settings {}", path.display())).because(e))?;
        let wrong = |span: Option<Range<usize>>, what: String| {
            let label = LabeledSpan::new_with_span(Some(what), span.unwrap_or(0..0));
            bad_input("invalid settings file").at(path, &text, label)
        };
        let document = Document::parse(text.as_str()).map_err(|e| wrong(e.span(), e.message().to_owned()))?;
        let (mut arguments, mut places) = (Vec::new(), Vec::new());
        for (name, item) in document.as_table() {
            let span = document.key(name).and_then(toml_edit::Key::span);
            let Some(arg) = known(command, name) else {
                return Err(wrong(span, unknown(command, name)));
            };
            let value =
                item.as_value().ok_or_else(|| wrong(span.clone(), "a value, not a table".to_owned()))?;
            let source = matches.value_source(arg.get_id().as_str());
            if !matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable)) {
                let spelled = spelled(arg, value);
                arguments.extend(spelled.map_err(|what| wrong(value.span().or(span), what.to_owned()))?);
                places.push((name.to_owned(), value.span().unwrap_or(0..0)));
            }
        }
        Ok(Self { path: path.to_owned(), text, arguments, places })
    }

    /// Returns the error of an argument from this file, with its place in the file.
    fn blame(&self, error: &clap::Error) -> Option<BadInput> {
        let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else { return None };
        let named = argument.trim_start_matches(['-', '<']).split([' ', '=', '>']).next()?.to_lowercase();
        let (_, span) = self.places.iter().find(|(name, _)| *name == named)?;
        let text = error.to_string();
        let reason = text.lines().next()?.trim_start_matches("error: ").to_owned();
        let label = LabeledSpan::new_with_span(Some(reason), span.clone());
        Some(bad_input("invalid settings file").at(&self.path, &self.text, label))
    }
}

/// The option of a command that a key of the file names.
fn known<'a>(command: &'a Command, key: &str) -> Option<&'a Arg> {
    settable(command).find(|arg| option(arg) == key)
}

fn settable(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| !["config", "help", "version"].contains(&arg.get_id().as_str()))
}

fn unknown(command: &Command, key: &str) -> String {
    let distance = |arg: &&Arg| strsim::damerau_levenshtein(option(arg), key);
    let nearest = settable(command).min_by_key(distance).map_or("", option);
    format!("{} has no option {key:?}; the nearest is {nearest:?}", command.get_name())
}

/// A value of the file as arguments.
fn spelled(arg: &Arg, value: &Value) -> Result<Vec<OsString>, &'static str> {
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        let on = value.as_bool().ok_or("true or false")?;
        return Ok(on.then(|| format!("--{}", option(arg)).into()).into_iter().collect());
    }
    let one = |value: &Value| match value {
        Value::String(text) => Ok(text.value().clone()),
        Value::Integer(number) => Ok(number.value().to_string()),
        Value::Float(number) => Ok(number.value().to_string()),
        _ => Err("a text or a number"),
    };
    let spell = |value: &Value| {
        let text = one(value)?;
        Ok(if arg.is_positional() { text.into() } else { format!("--{}={text}", option(arg)).into() })
    };
    match value {
        Value::Array(values) if matches!(arg.get_action(), ArgAction::Append) => {
            values.iter().map(spell).collect()
        }
        value => Ok(vec![spell(value)?]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> Command {
        let serve = Command::new("serve").args([
            Arg::new("experiment").required(true),
            Arg::new("listen").long("listen").value_parser(clap::value_parser!(u16)),
            Arg::new("wait_for").long("wait-for"),
            Arg::new("set").long("set").action(ArgAction::Append),
            Arg::new("stay").long("stay").action(ArgAction::SetTrue),
            Arg::new("config").long("config").value_parser(clap::value_parser!(PathBuf)),
        ]);
        by_environment(Command::new("deltafl").subcommand(serve).subcommand(Command::new("device")))
    }

    fn served(settings: &str, line: &str) -> Result<ArgMatches, BadInput> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server.toml");
        std::fs::write(&path, settings).unwrap();
        let line = format!("deltafl serve --config {} {line}", path.display());
        let matches = matches(command(), line.split_whitespace().map(OsString::from).collect())?;
        Ok(matches.subcommand_matches("serve").unwrap().clone())
    }

    #[test]
    fn what_stands_in_the_file_is_set_unless_a_flag_says_otherwise() {
        let file =
            "experiment = \"x.toml\"\nlisten = 1\nwait-for = \"7\"\nstay = true\nset = [\"a=1\", \"b=2\"]\n";
        let matches = served(file, "--listen 2").unwrap();
        assert_eq!(matches.get_one::<String>("experiment").unwrap(), "x.toml");
        assert_eq!(matches.get_one::<u16>("listen"), Some(&2));
        assert_eq!(matches.get_one::<String>("wait_for").unwrap(), "7");
        assert_eq!(matches.get_many::<String>("set").unwrap().collect::<Vec<_>>(), ["a=1", "b=2"]);
        assert!(matches.get_flag("stay"));
    }

    #[test]
    fn a_file_does_not_apply_to_the_commands_below_a_program() {
        let device = Command::new("device")
            .args([
                Arg::new("server").long("server").required(true),
                Arg::new("config").long("config").value_parser(clap::value_parser!(PathBuf)),
            ])
            .subcommand_negates_reqs(true)
            .subcommand(Command::new("status").arg(Arg::new("state").required(true)));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("device.toml");
        std::fs::write(&path, "server = \"localhost:7700\"\n").unwrap();
        let config = format!("--config={}", path.display());
        let given = ["deltafl", "device", &config, "status", "identity/state"].map(OsString::from).to_vec();
        let command = Command::new("deltafl").subcommands([Command::new("serve"), device]);
        let matches = matches(command, given).unwrap();
        let device = matches.subcommand_matches("device").unwrap();
        assert_eq!(device.subcommand_name(), Some("status"));
    }

    #[test]
    fn an_error_names_the_line_and_the_nearest_option() {
        for (file, says) in [
            ("listen = 1\nwait_for = 3\n", "server.toml:2:1"),
            ("wait_for = 3\n", "the nearest is \"wait-for\""),
            ("experiment = \"x\"\n\nlisten = \"many\"\n", "server.toml:3:10"),
            ("experiment = \"x\"\nlisten = \"many\"\n", "invalid value 'many' for '--listen <listen>'"),
            ("stay = 3\n", "true or false"),
            ("listen = \n", "server.toml:1"),
            ("[listen]\nx = 1\n", "a value, not a table"),
            ("config = \"y\"\n", "has no option \"config\""),
        ] {
            let error = served(file, "").unwrap_err();
            let text = format!("{:?}", miette::Report::new(error));
            assert!(text.contains(says), "{file}\n{text}");
        }
    }

    #[test]
    fn a_value_of_the_environment_is_not_blamed_on_the_file() {
        let command = command().mut_subcommand("serve", |serve| {
            serve.mut_arg("wait_for", |arg| {
                // A variable that this process has, with a value that is no number.
                arg.env("CARGO_MANIFEST_DIR").value_parser(clap::value_parser!(u16))
            })
        });
        let serve = command.find_subcommand("serve").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server.toml");
        std::fs::write(&path, "experiment = \"x.toml\"\nwait-for = 7\n").unwrap();
        let given = ["deltafl", "serve"].map(OsString::from);
        let lenient = command
            .clone()
            .ignore_errors(true)
            .mut_subcommand("serve", |serve| serve.ignore_errors(true).mut_args(|arg| arg.required(false)));
        let matches = lenient.try_get_matches_from(&given).unwrap();
        let matches = matches.subcommand_matches("serve").unwrap();
        let file = SettingsFile::read(&path, serve, matches).unwrap();
        let arguments = given.into_iter().chain(file.arguments.iter().cloned());
        let error = command.clone().try_get_matches_from(arguments).unwrap_err();
        assert!(error.to_string().contains("--wait-for"), "{error}");
        assert!(file.blame(&error).is_none());
    }

    #[test]
    fn a_variable_that_names_no_option_is_rejected() {
        let command = command();
        let serve = command.find_subcommand("serve").unwrap();
        let check = |name: &str| check_variables(serve, [OsString::from(name)].into_iter());
        for name in ["DELTAFL_SERVE_WAIT_FOR", "DELTAFL_SERVER", "DELTAFL_DEVICE_WAIT", "PATH"] {
            check(name).unwrap();
        }
        let error = check("DELTAFL_SERVE_WAITFOR").unwrap_err().to_string();
        assert!(error.ends_with("names no option; the nearest is DELTAFL_SERVE_WAIT_FOR"), "{error}");
    }

    #[test]
    fn the_settings_that_are_shipped_are_options() {
        use clap::CommandFactory as _;
        let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
        for (name, file) in [("serve", "server.toml"), ("device", "device.toml")] {
            let given = ["deltafl", name, "--config"].map(OsString::from).into_iter();
            let given = given.chain([deploy.join(file).into_os_string()]).collect();
            let matches = matches(by_environment(crate::Cli::command()), given).unwrap();
            assert_eq!(matches.subcommand_name(), Some(name));
        }
    }

    #[test]
    fn every_option_has_a_variable_of_its_own() {
        let command = command();
        let serve = command.find_subcommand("serve").unwrap();
        let variable = |id: &str| serve.get_arguments().find(|arg| arg.get_id() == id).unwrap().get_env();
        assert_eq!(variable("wait_for").unwrap(), "DELTAFL_SERVE_WAIT_FOR");
        assert_eq!(variable("experiment").unwrap(), "DELTAFL_SERVE_EXPERIMENT");
    }
}
