//! Wrong usage, as clap finds it, in the form of every other failure: one line, or one JSON object.

use crate::cli::Cli;
use crate::failure::Failure;
use clap::CommandFactory as _;
use clap::error::ErrorKind;
use std::env;
use std::ffi::OsString;

/// Whether it is no failure, or no more than a command that lacks: then the help is what to print.
pub(crate) fn is_help(error: &clap::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    )
}

/// Whether `args`, which could not be read, ask for JSON.
pub(crate) fn wants_json(args: &[OsString]) -> bool {
    args.iter()
        .take_while(|a| *a != "--")
        .any(|a| a == "--json")
}

/// What is wrong with `args`, and which help to look into. A value that the environment has is called by the name of its
/// variable.
pub(crate) fn failure(error: &clap::Error, args: &[OsString]) -> Failure {
    let text = error.render().to_string();
    let mut paragraphs = text.split("\n\n");
    let first = paragraphs.next().unwrap_or_default();
    let mut what = first.trim_start_matches("error: ").to_owned();
    let mut remedy: Vec<String> = paragraphs
        .flat_map(str::lines)
        .filter_map(|line| line.trim().strip_prefix("tip: "))
        .map(str::to_owned)
        .collect();
    let (command, name) = command(args);
    let set = set_variables(&command, args);
    for (flag, variable) in &set {
        what = named(&what, flag, variable);
    }
    if error.kind() == ErrorKind::MissingRequiredArgument && !set.is_empty() {
        let set: Vec<_> = set.into_iter().map(|(_, variable)| variable).collect();
        remedy.push(format!("in the environment there is {}", set.join(", ")));
    }
    remedy.push(format!("see {name} --help"));
    Failure::usage(what, remedy.join("; "))
}

/// The command that `args` name, as far as they name one, and its name.
fn command(args: &[OsString]) -> (clap::Command, String) {
    let mut command = Cli::command();
    let mut name = command.get_name().to_owned();
    let words = args.iter().skip(1).filter_map(|a| a.to_str());
    for word in words.filter(|w| !w.starts_with('-')) {
        let Some(found) = command.find_subcommand(word) else {
            break;
        };
        name = format!("{name} {word}");
        command = found.clone();
    }
    (command, name)
}

/// Flags of `command` for which the environment speaks, and the variables. A flag that is given wins.
fn set_variables(command: &clap::Command, args: &[OsString]) -> Vec<(String, String)> {
    let given = |flag: &str| {
        args.iter().filter_map(|a| a.to_str()).any(|a| {
            a.strip_prefix(flag)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        })
    };
    command
        .get_arguments()
        .filter_map(|arg| {
            let flag = format!("--{}", arg.get_long()?);
            let variable = arg.get_env()?;
            let speaks = env::var_os(variable).is_some() && !given(&flag);
            speaks.then(|| (flag, variable.to_string_lossy().into_owned()))
        })
        .collect()
}

/// `text` with the flag, as clap quotes it with the name of its value, called by its variable.
fn named(text: &str, flag: &str, variable: &str) -> String {
    let quoted = format!("'{flag}");
    let Some((before, after)) = text.split_once(&quoted) else {
        return text.to_owned();
    };
    match after.split_once('\'') {
        Some((value, rest)) if value.is_empty() || value.starts_with(' ') => {
            format!("{before}{variable} in the environment{rest}")
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    fn said(words: &[&str]) -> String {
        let args = args(words);
        let error = crate::cli::parse(args.clone()).unwrap_err();
        assert!(!is_help(&error), "{error}");
        failure(&error, &args).to_string()
    }

    #[test]
    fn wrong_usage_is_one_line_that_names_the_help() {
        for (words, what, help) in [
            (
                &["kbtp", "serve", "--direct", "maybe"][..],
                "invalid value 'maybe' for '--direct <on|off>' [possible values: on, off]; ",
                "see kbtp serve --help",
            ),
            (
                &["kbtp", "trace", "generate", "--sed=1"],
                "unexpected argument '--sed' found; a similar argument exists: '--seed'; ",
                "see kbtp trace generate --help",
            ),
            (
                &["kbtp", "get"],
                "required arguments were not provided: <MAP|FILE>; ",
                "see kbtp get --help",
            ),
            (
                &["kbtp", "--json", "completions", "bash"],
                "--json cannot be used with completions, ",
                "see kbtp completions --help",
            ),
            (
                &["kbtp", "-v", "frobnicate"],
                "unrecognized subcommand 'frobnicate'; ",
                "see kbtp --help",
            ),
        ] {
            let said = said(words);
            assert!(said.contains(what) && said.ends_with(help), "{said}");
            assert!(!said.contains(['\n', '\u{1b}']), "{said:?}");
        }
    }

    #[test]
    fn help_and_a_missing_command_print_the_help() {
        for words in [
            &["kbtp"][..],
            &["kbtp", "--help"],
            &["kbtp", "trace"],
            &["kbtp", "-V"],
        ] {
            let error = crate::cli::parse(args(words)).unwrap_err();
            assert!(is_help(&error), "{words:?}");
        }
    }

    #[test]
    fn json_is_asked_for_before_the_end_of_the_flags() {
        assert!(wants_json(&args(&["kbtp", "serve", "--json", "--x"])));
        assert!(!wants_json(&args(&["kbtp", "put", "--", "--json"])));
    }

    #[test]
    fn a_flag_is_called_by_its_variable_and_no_longer_flag_is() {
        let text = "invalid value 'x' for '--block-size <SIZE>': no size";
        assert_eq!(
            named(text, "--block-size", "KBTP_BLOCK_SIZE"),
            "invalid value 'x' for KBTP_BLOCK_SIZE in the environment: no size"
        );
        assert_eq!(named(text, "--block", "KBTP_BLOCK"), text);
        let switch = "invalid value 'x' for '--allow'";
        assert_eq!(
            named(switch, "--allow", "KBTP_ALLOW"),
            "invalid value 'x' for KBTP_ALLOW in the environment"
        );
    }
}
