//! The state of the view: the latest rates, and what the keys selected.

use std::cmp::Ordering;
use std::collections::VecDeque;

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::meter::{PortName, Rates, Row, busiest_first};

/// The length of the chart: as many columns as the widest terminal has.
const HISTORY_LENGTH: usize = 500;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    #[default]
    Rate,
    Total,
    Name,
}

impl Sort {
    pub fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Total => "total",
            Self::Name => "name",
        }
    }

    fn next(self) -> Self {
        match self {
            Self::Rate => Self::Total,
            Self::Total => Self::Name,
            Self::Name => Self::Rate,
        }
    }

    fn order(self, a: &Row, b: &Row) -> Ordering {
        let by_name = a.name.cmp(&b.name);
        match self {
            Self::Rate => busiest_first(&a.flow, &b.flow).then(by_name),
            Self::Total => b.flow.total.cmp(&a.flow.total).then(by_name),
            Self::Name => by_name,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOutcome {
    Continue,
    Quit,
}

#[derive(Debug, Default)]
pub struct TopView {
    pub rates: Option<Rates>,
    /// Why the last update failed.
    pub error: Option<String>,
    /// Rates of all service ports together, the latest last.
    pub history: VecDeque<f64>,
    pub sort: Sort,
    pub reversed: bool,
    /// Only rows whose name or addresses contain this are shown.
    pub search: String,
    /// Whether keys edit the search text.
    pub is_typing: bool,
    pub shows_help: bool,
    /// `None` selects the first row.
    selected: Option<PortName>,
    /// Whether the endpoints of the selected service port are shown.
    pub is_open: bool,
    /// The first line of the endpoints that is shown.
    pub scrolled: usize,
    /// The first row that the screen last showed.
    pub first: usize,
    /// The number of rows that the screen last had room for.
    pub page: usize,
    /// The number of lines about the endpoints when the screen was last drawn.
    pub lines: usize,
}

impl TopView {
    /// Takes new rates, or the reason why there are none.
    pub fn update(&mut self, result: Result<Rates, String>) {
        match result {
            Ok(rates) => {
                if let Some(rate) = rates.flow.rate {
                    self.history.push_back(rate);
                }
                while self.history.len() > HISTORY_LENGTH {
                    self.history.pop_front();
                }
                self.rates = Some(rates);
                self.error = None;
            }
            Err(error) => self.error = Some(error),
        }
    }

    /// The service ports to show, sorted.
    pub fn rows(&self) -> Vec<&Row> {
        let search = self.search.to_lowercase();
        let all = self.rates.iter().flat_map(|rates| &rates.rows);
        let mut rows: Vec<&Row> = all.filter(|row| matches(row, &search)).collect();
        rows.sort_by(|a, b| self.sort.order(a, b));
        if self.reversed {
            rows.reverse();
        }
        rows
    }

    /// The index of the selected row.
    pub fn position(&self, rows: &[&Row]) -> usize {
        let is_selected = |row: &&Row| Some(&row.name) == self.selected.as_ref();
        rows.iter().position(is_selected).unwrap_or_default()
    }

    pub fn handle_key(&mut self, key: KeyEvent) -> KeyOutcome {
        if key.kind == KeyEventKind::Release {
            return KeyOutcome::Continue;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { KeyOutcome::Quit } else { KeyOutcome::Continue };
        }
        if self.shows_help {
            self.shows_help = false;
            return KeyOutcome::Continue;
        }
        if self.is_typing {
            self.edit_search(key.code);
            return KeyOutcome::Continue;
        }
        self.command(key.code)
    }

    fn edit_search(&mut self, key: KeyCode) {
        if let KeyCode::Char(letter) = key {
            self.search.push(letter);
        } else if key == KeyCode::Backspace {
            self.search.pop();
        } else if key == KeyCode::Enter {
            self.is_typing = false;
        } else if key == KeyCode::Esc {
            self.is_typing = false;
            self.search.clear();
        } else {
            self.navigate(key);
        }
    }

    fn command(&mut self, key: KeyCode) -> KeyOutcome {
        if let KeyCode::Char(letter) = key {
            match letter {
                'q' => return KeyOutcome::Quit,
                '?' | 'h' => self.shows_help = true,
                '/' => {
                    self.is_typing = true;
                    self.close();
                }
                's' => self.sort = self.sort.next(),
                'r' => self.reversed = !self.reversed,
                'j' => self.navigate(KeyCode::Down),
                'k' => self.navigate(KeyCode::Up),
                _ => {}
            }
        } else if key == KeyCode::Enter || key == KeyCode::Right {
            self.open();
        } else if key == KeyCode::Left {
            self.close();
        } else if key == KeyCode::Esc {
            if self.is_open { self.close() } else { self.search.clear() }
        } else {
            self.navigate(key);
        }
        KeyOutcome::Continue
    }

    fn open(&mut self) {
        // Without a selection the first row counts: select it by name, so that it stays selected when rows move.
        self.select(|position| position);
        self.is_open = self.selected.is_some() && !self.rows().is_empty();
        self.scrolled = 0;
    }

    fn close(&mut self) {
        self.is_open = false;
        self.scrolled = 0;
    }

    fn navigate(&mut self, key: KeyCode) {
        let page = self.page.max(1);
        let (up, down) = if key == KeyCode::Up {
            (1, 0)
        } else if key == KeyCode::Down {
            (0, 1)
        } else if key == KeyCode::PageUp {
            (page, 0)
        } else if key == KeyCode::PageDown {
            (0, page)
        } else if key == KeyCode::Home {
            (usize::MAX, 0)
        } else if key == KeyCode::End {
            (0, usize::MAX)
        } else {
            return;
        };
        let step = |position: usize| position.saturating_sub(up).saturating_add(down);
        if self.is_open {
            self.scrolled = step(self.scrolled).min(self.lines.saturating_sub(page));
        } else {
            self.select(step);
        }
    }

    fn select(&mut self, step: impl FnOnce(usize) -> usize) {
        let rows = self.rows();
        let position = step(self.position(&rows)).min(rows.len().saturating_sub(1));
        self.selected = rows.get(position).map(|row| row.name.clone());
    }
}

/// `search` is in lower case.
fn matches(row: &Row, search: &str) -> bool {
    search.is_empty()
        || row.name.to_string().to_lowercase().contains(search)
        || row.frontends.iter().chain(&row.endpoints).any(|part| part.address.contains(search))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::meter::Meter;
    use super::super::meter::tests::{page, service_port};
    use super::*;

    /// Three service ports; the order by name is the order by total and the reverse of the order by rate.
    fn state() -> TopView {
        let at = |second: u64| {
            page(vec![
                service_port("cart", &[("10.96.0.1:80", 3_000 + second, &[("10.244.0.1:80", 1)])]),
                service_port("pay", &[("10.96.0.2:80", 2_000 + 2 * second, &[("10.244.0.2:80", 1)])]),
                service_port("till", &[("10.96.0.3:80", 1_000 + 3 * second, &[("10.244.0.3:80", 1)])]),
            ])
        };
        let mut meter = Meter::default();
        let mut state = TopView { page: 10, lines: 30, ..TopView::default() };
        for second in 0..2 {
            state.update(Ok(meter.update(at(second), Duration::from_secs(second))));
        }
        state
    }

    fn press(state: &mut TopView, keys: &str) -> KeyOutcome {
        let mut next = KeyOutcome::Continue;
        for key in keys.split(' ') {
            let code = match key {
                "enter" => KeyCode::Enter,
                "esc" => KeyCode::Esc,
                "left" => KeyCode::Left,
                "right" => KeyCode::Right,
                "up" => KeyCode::Up,
                "down" => KeyCode::Down,
                "pgup" => KeyCode::PageUp,
                "pgdn" => KeyCode::PageDown,
                "home" => KeyCode::Home,
                "end" => KeyCode::End,
                "backspace" => KeyCode::Backspace,
                letter => KeyCode::Char(letter.chars().next().unwrap()),
            };
            next = state.handle_key(code.into());
        }
        next
    }

    fn names(state: &TopView) -> Vec<&str> {
        state.rows().iter().map(|row| row.name.service.as_str()).collect()
    }

    fn selected(state: &TopView) -> &str {
        let rows = state.rows();
        rows.get(state.position(&rows)).map_or("", |row| &row.name.service)
    }

    #[test]
    fn rows_are_sorted_by_the_chosen_column() {
        let mut state = state();
        assert_eq!(names(&state), ["till", "pay", "cart"], "by rate");
        press(&mut state, "s");
        assert_eq!(names(&state), ["cart", "pay", "till"], "by total");
        press(&mut state, "s r");
        assert_eq!(names(&state), ["till", "pay", "cart"], "by name, reversed");
        press(&mut state, "s r");
        assert_eq!((names(&state), state.sort), (vec!["till", "pay", "cart"], Sort::Rate));
    }

    #[test]
    fn the_selection_moves_and_stays_with_its_service() {
        let mut state = state();
        assert_eq!(selected(&state), "till");
        press(&mut state, "j down down");
        assert_eq!(selected(&state), "cart", "no further than the last");
        press(&mut state, "s");
        assert_eq!(selected(&state), "cart", "cart is now the first");
        press(&mut state, "end");
        assert_eq!(selected(&state), "till");
        press(&mut state, "k");
        assert_eq!(selected(&state), "pay");
        press(&mut state, "pgup");
        assert_eq!(selected(&state), "cart");
        press(&mut state, "pgdn home");
        assert_eq!(selected(&state), "cart");
        state.update(Ok(Rates::default()));
        press(&mut state, "down enter");
        assert_eq!(selected(&state), "");
        assert!(!state.is_open, "there is nothing to open");
    }

    #[test]
    fn a_search_finds_names_and_addresses() {
        let mut state = state();
        press(&mut state, "/ P A x backspace");
        assert_eq!((names(&state), state.search.as_str()), (vec!["pay"], "PA"));
        press(&mut state, "enter q");
        assert!(!state.is_typing);
        press(&mut state, "esc / 2 4 4 . 0 . 3");
        assert_eq!(names(&state), ["till"]);
        press(&mut state, "q");
        assert_eq!(names(&state), [""; 0], "q is text here");
        press(&mut state, "esc");
        assert_eq!((names(&state).len(), state.is_typing), (3, false));
    }

    #[test]
    fn endpoints_open_scroll_and_close() {
        let mut state = state();
        press(&mut state, "down enter down down");
        assert_eq!((state.is_open, selected(&state), state.scrolled), (true, "pay", 2));
        press(&mut state, "end");
        assert_eq!(state.scrolled, 20, "thirty lines on pages of ten");
        press(&mut state, "left right");
        assert_eq!((state.is_open, state.scrolled), (true, 0));
        press(&mut state, "esc");
        assert_eq!((state.is_open, selected(&state)), (false, "pay"));
    }

    #[test]
    fn q_and_ctrl_c_quit() {
        let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(press(&mut state(), "q"), KeyOutcome::Quit);
        assert_eq!(state().handle_key(ctrl_c), KeyOutcome::Quit);
        let mut typing = state();
        assert_eq!(press(&mut typing, "/ q"), KeyOutcome::Continue);
        assert_eq!(typing.handle_key(ctrl_c), KeyOutcome::Quit);
        let mut reading = state();
        assert_eq!(press(&mut reading, "? q"), KeyOutcome::Continue, "any key closes the help");
        assert_eq!(press(&mut reading, "q"), KeyOutcome::Quit);
    }

    #[test]
    fn the_last_rates_stay_while_updates_fail() {
        let mut state = state();
        state.update(Err("connection refused".to_owned()));
        assert_eq!((names(&state).len(), state.history.len()), (3, 1));
        assert!(state.error.is_some());
        state.update(Ok(Rates::default()));
        assert!(state.error.is_none());
    }
}
