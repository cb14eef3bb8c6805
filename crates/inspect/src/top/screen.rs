//! Draws the state into a buffer of any size, and omits what does not fit.
//!
//! Colours only emphasize; nothing is conveyed by colour alone.

mod canvas;
mod detail;
mod list;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::widgets::{Block, Clear, Paragraph, Sparkline, Widget as _};

use super::meter::ConnectionRate;
use super::state::TopView;
use super::text;
use canvas::{Canvas, cut_bottom, cut_left, cut_right, cut_top, put, put_right};

/// From this width on endpoints are shown beside the list instead of in its place.
const TWO_PANES: u16 = 120;

const HELP: &[&str] = &[
    "up down j k       move",
    "PgUp PgDn         move by a page",
    "Home End          first and last",
    "Enter right       endpoints and frontends",
    "Esc left          back",
    "/                 search by name or address",
    "s                 sort by rate, total, name",
    "r                 reverse the order",
    "q Ctrl-C          quit",
    "",
    "NEW/S  new connections per second",
    "TOTAL  since it was added to the kernel",
    "       (with session affinity, a client counts",
    "       once per endpoint)",
];

const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);
const FAINT: Style = Style::new().add_modifier(Modifier::DIM);
const BAR: Style = Style::new().add_modifier(Modifier::REVERSED);
const ERROR: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
const CHART: Style = Style::new().fg(Color::Cyan);

pub fn draw(state: &mut TopView, area: Rect, buffer: &mut Buffer) {
    let mut rest = area.intersection(buffer.area);
    let canvas = &mut Canvas(buffer);
    header(state, cut_top(&mut rest, 1), canvas);
    if rest.height >= 2 {
        footer(state, cut_bottom(&mut rest, 1), canvas);
    }
    if let Some(error) = &state.error {
        let line = cut_bottom(&mut rest, 1);
        put(canvas, line, 0, &format!(" update failed, retrying: {error}"), ERROR);
    }
    let height = match area.height {
        40.. => 6,
        16.. => 3,
        _ => 0,
    };
    chart(state, cut_top(&mut rest, height), canvas);
    if state.is_open && area.width >= TWO_PANES {
        let mut pane = cut_right(&mut rest, area.width / 2);
        let mut line = cut_left(&mut pane, 1);
        while !line.is_empty() {
            put(canvas, cut_top(&mut line, 1), 0, "│", FAINT);
        }
        list::draw(state, rest, canvas);
        detail::draw(state, pane, canvas);
    } else if state.is_open {
        detail::draw(state, rest, canvas);
    } else {
        list::draw(state, rest, canvas);
    }
    if state.shows_help {
        help(area, canvas);
    }
}

/// Implements NO_COLOR. crossterm implements it, too, but there each change of colour resets bold and reversed.
pub fn without_colours(buffer: &mut Buffer) {
    for cell in &mut buffer.content {
        cell.set_fg(Color::Reset).set_bg(Color::Reset);
    }
}

fn header(state: &TopView, line: Rect, canvas: &mut Canvas<'_>) {
    canvas.0.set_style(line, BAR);
    let Some(rates) = &state.rates else { return };
    let ConnectionRate { rate, total } = rates.flow;
    let left = format!(" kube-proxy top   {}   {}", rates.node, rates.mode);
    put(canvas, line, 0, &left, BAR.patch(STRONG));
    let figures = format!(" {} new/s   {} total ", text::rate(rate), text::total(total));
    let short = format!(" {} new/s ", text::rate(rate));
    let room = usize::from(line.width).saturating_sub(left.chars().count());
    for figures in [figures, short] {
        if figures.chars().count() <= room {
            put_right(canvas, line, &figures, BAR.patch(STRONG));
            return;
        }
    }
}

/// The history of the total rate, with the latest value at the right.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "only heights of bars")]
fn chart(state: &TopView, area: Rect, canvas: &mut Canvas<'_>) {
    const LABEL: u16 = 9;
    let mut chart = area;
    cut_bottom(&mut chart, 1);
    let label = Rect { width: LABEL.min(chart.width), ..chart };
    chart.x += label.width;
    chart.width = chart.width.saturating_sub(LABEL + 1);
    if chart.is_empty() {
        return;
    }
    let shown = usize::from(chart.width).min(state.history.len());
    let rates = || state.history.iter().skip(state.history.len() - shown);
    let highest = rates().copied().fold(0.0, f64::max);
    let bars: Vec<u64> = rates().map(|rate| (rate * 1_000.0) as u64).collect();
    let width = u16::try_from(shown).unwrap_or(chart.width);
    let chart = Rect { x: chart.right() - width, width, ..chart };
    if !chart.is_empty() {
        Sparkline::default()
            .data(bars)
            .max(((highest * 1_000.0) as u64).max(1))
            .style(CHART)
            .render(chart, canvas.0);
    }
    put(canvas, label, 0, &format!(" {:>5}/s", text::rate((shown > 0).then_some(highest))), FAINT);
    put(canvas, label, label.height.saturating_sub(1), "     0/s", FAINT);
}

fn footer(state: &TopView, line: Rect, canvas: &mut Canvas<'_>) {
    if state.is_typing {
        put(canvas, line, 0, &format!(" search: {}▏  Enter keeps it, Esc clears it", state.search), STRONG);
        return;
    }
    let order = state.sort.name();
    let keys: &[&str] = if state.is_open {
        &["q quit", "Esc back", "↑↓ scroll", "? help"]
    } else if state.search.is_empty() {
        &["q quit", "Enter endpoints", "/ search", &format!("s sort: {order}"), "r reverse", "? help"]
    } else {
        &["q quit", "Enter endpoints", "Esc show all", &format!("s sort: {order}"), "r reverse", "? help"]
    };
    put(canvas, line, 0, &format!(" {}", keys.join("   ")), FAINT);
}

fn help(area: Rect, canvas: &mut Canvas<'_>) {
    let (width, height) = (50, 16);
    let (width, height) = (area.width.min(width), area.height.min(height));
    let x = area.x + (area.width - width) / 2;
    let y = area.y + (area.height - height) / 2;
    let area = Rect { x, y, width, height };
    let lines: Vec<String> = HELP.iter().map(|line| format!(" {line}")).collect();
    Clear.render(area, canvas.0);
    let block = Block::bordered().title(" Help ");
    Paragraph::new(lines.join("\n")).block(block).render(area, canvas.0);
}

#[cfg(test)]
mod tests;
