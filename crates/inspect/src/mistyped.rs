//! Which subcommand a mistyped word may have meant.

use super::TOOLS;

/// A line to say after what is wrong with the command line; nothing if the word is like no subcommand's name.
pub fn hint(word: &str) -> Option<String> {
    let name = nearest(word)?;
    // A right name is in the wrong place.
    let place = if word == name { " Subcommands come first." } else { "" };
    Some(format!("Did you mean \"kube-proxy {name}\"?{place}"))
}

/// One letter in three may be wrong: one too many, missing, another, or swapped with the next.
fn nearest(word: &str) -> Option<String> {
    let typed = word.to_lowercase();
    let tools = TOOLS.iter().map(|tool| (tool.command)().get_name().to_owned());
    let names = tools.chain(["help".to_owned()]).map(|name| (strsim::osa_distance(&typed, &name), name));
    names
        .filter(|(slips, name)| *slips <= name.len() / 3)
        .min_by_key(|(slips, _)| *slips)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_like_no_name_is_not_taken_for_one() {
        for word in ["x", "false", "foo", "-", "--v=2", "", "proxy", "start", "man"] {
            assert_eq!(nearest(word), None, "{word:?}");
        }
    }

    #[test]
    fn the_nearest_name_comes_first_to_mind() {
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
