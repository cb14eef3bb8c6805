//! Suggests a subcommand for a mistyped word.

use super::SUBCOMMANDS;

/// A line to print after an error of the command line, if the word resembles the name of a subcommand.
pub fn hint(word: &str) -> Option<String> {
    let name = nearest(word)?;
    // The name is right, so it is in the wrong place.
    let place = if word == name { " Subcommands come first." } else { "" };
    Some(format!("Did you mean \"kube-proxy {name}\"?{place}"))
}

/// Allows one edit for every three letters of the name: an insertion, deletion, substitution or transposition.
fn nearest(word: &str) -> Option<String> {
    let typed = word.to_lowercase();
    let names = SUBCOMMANDS.iter().map(|subcommand| (subcommand.command)().get_name().to_owned());
    let names = names.chain(["help".to_owned()]).map(|name| (strsim::osa_distance(&typed, &name), name));
    names
        .filter(|(edits, name)| *edits <= name.len() / 3)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unrelated_word_has_no_suggestion() {
        for word in ["x", "false", "foo", "-", "--v=2", "", "proxy", "start", "man"] {
            assert_eq!(nearest(word), None, "{word:?}");
        }
    }

    #[test]
    fn the_nearest_name_is_suggested() {
        for (word, want) in [
            ("explan", "explain"),
            ("explain", "explain"),
            ("EXPLAIN", "explain"),
            ("plann", "plan"),
            ("hlep", "help"),
            ("rendre", "render"),
            ("completions", "completion"),
            ("tpo", "top"),
            ("vrfy", "verify"),
        ] {
            assert_eq!(nearest(word).as_deref(), Some(want), "{word:?}");
        }
    }
}
