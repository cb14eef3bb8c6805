//! Compares screens with the text files in `screens/`. UPDATE_SCREENS=1 rewrites the files.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crossterm::event::KeyCode;
use proptest::collection::vec;
use proptest::prelude::*;
use proxy::connections::{ConnectionsPage, EndpointConnections, FrontendConnections, ServicePortConnections};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::super::meter::tests::{page, service_port};
use super::super::meter::{Meter, Rates};
use super::*;

fn show(state: &mut TopView, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(state, frame.area(), frame.buffer_mut())).unwrap();
    let buffer = terminal.backend().buffer();
    let cells: Vec<&str> = buffer.content().iter().map(|cell| cell.symbol()).collect();
    cells.chunks(width.into()).map(|line| line.concat().trim_end().to_owned() + "\n").collect()
}

#[track_caller]
fn expect(state: &mut TopView, width: u16, height: u16, name: &str) {
    let file = format!("src/top/screens/{name}-{width}x{height}.txt");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let shown = show(state, width, height);
    if std::env::var_os("UPDATE_SCREENS").is_some() {
        fs::write(&file, &shown).unwrap();
    }
    let expected = fs::read_to_string(&file).unwrap_or_default();
    assert!(
        shown == expected,
        "{} differs from this screen, UPDATE_SCREENS=1 rewrites it:\n{shown}",
        file.display()
    );
}

/// Sixty service ports, most with low rates.
fn shop() -> TopView {
    let at = |second: u64| {
        let mut ports = vec![
            service_port(
                "checkout",
                &[
                    (
                        "10.96.4.20:443",
                        90_000 + 251 * second,
                        &[
                            ("10.244.0.17:8443", 30_000 + 120 * second),
                            ("10.244.1.4:8443", 30_000 + 81 * second),
                            ("10.244.2.9:8443", 30_000 + 50 * second),
                        ],
                    ),
                    (
                        "*:30443",
                        1_200 + 12 * second,
                        &[("10.244.0.17:8443", 600 + 12 * second), ("10.244.1.4:8443", 600)],
                    ),
                ],
            ),
            service_port(
                "recommendations-for-customers-who-have-been-here-before-v2",
                &[(
                    "[fd00:10:96::2c1f]:8080",
                    23_456_789 + 1_400 * second + 200 * (second % 7),
                    &[("[fd00:10:244:1::17]:8080", 23_456_789 + 1_400 * second + 200 * (second % 7))],
                )],
            ),
        ];
        for number in 0..58 {
            let count = 700 + 13 * number + second * (number % 5);
            let cluster_ip = format!("10.96.7.{number}:80");
            let endpoint = format!("10.244.3.{number}:80");
            ports.push(service_port(
                &format!("service-{number:02}"),
                &[(&cluster_ip, count, &[(&endpoint, count)])],
            ));
        }
        page(ports)
    };
    let (mut meter, mut state) = (Meter::default(), TopView::default());
    for second in 0..45 {
        state.update(Ok(meter.update(at(second), Duration::from_secs(second))));
    }
    state
}

fn press(state: &mut TopView, keys: &[KeyCode]) {
    for key in keys {
        state.handle_key((*key).into());
    }
}

#[test]
fn services_are_sorted_by_rate() {
    expect(&mut shop(), 80, 24, "services");
    expect(&mut shop(), 160, 50, "services");
}

#[test]
fn the_endpoints_of_a_service_are_shown() {
    for (width, height) in [(80, 24), (160, 50)] {
        let mut state = shop();
        press(&mut state, &[KeyCode::Down, KeyCode::Enter]);
        expect(&mut state, width, height, "endpoints");
    }
}

#[test]
fn a_search_filters_the_list() {
    for (width, height) in [(80, 24), (160, 50)] {
        let mut state = shop();
        press(&mut state, &['/', 'c', 'e', '-', '1'].map(KeyCode::Char));
        expect(&mut state, width, height, "search");
    }
}

#[test]
fn the_help_covers_the_list() {
    for (width, height) in [(80, 24), (160, 50)] {
        let mut state = shop();
        press(&mut state, &[KeyCode::Char('?')]);
        expect(&mut state, width, height, "help");
        let shown = show(&mut state, width, height);
        assert!(HELP.iter().all(|line| shown.contains(line)), "the help is truncated");
    }
}

#[test]
fn a_failed_update_is_shown() {
    let mut state = shop();
    state.update(Err("127.0.0.1:10249: Connection refused (os error 111)".to_owned()));
    expect(&mut state, 80, 24, "error");
}

#[test]
fn a_node_without_services_shows_a_message() {
    let mut state = TopView::default();
    state.update(Ok(Meter::default().update(page(Vec::new()), Duration::ZERO)));
    expect(&mut state, 80, 24, "empty");
}

#[test]
fn a_small_screen_has_the_important_columns() {
    let mut state = shop();
    assert_eq!(
        show(&mut state, 20, 5),
        " kube-proxy top   no
 SERVICE P   NEW/S▾
 shop…http     1600
 shop…http      263
 q quit   Enter endp
"
    );
}

#[test]
fn colours_can_be_disabled() {
    let mut buffer = Buffer::empty(Rect::new(0, 0, 80, 24));
    draw(&mut shop(), buffer.area, &mut buffer);
    let colours = |buffer: &Buffer| buffer.content.iter().filter(|cell| cell.fg != Color::Reset).count();
    assert!(colours(&buffer) > 0);
    without_colours(&mut buffer);
    assert_eq!(colours(&buffer), 0);
    let is_selected = |line| buffer[(1, line)].modifier.contains(Modifier::REVERSED);
    assert!(is_selected(5) && !is_selected(6), "the selection is visible without colours");
}

#[test]
fn the_selected_row_is_always_visible() {
    let mut state = shop();
    for _ in 0..70 {
        let shown = show(&mut state, 80, 24);
        let rows = state.rows();
        let name = rows[state.position(&rows)].name.service.clone();
        let end: String = name.chars().skip(name.len().saturating_sub(10)).collect();
        assert!(shown.contains(&end), "{name} in\n{shown}");
        press(&mut state, &[KeyCode::Down]);
    }
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z0-9.:/-]{0,70}", "\\PC{0,20}"]
}

fn any_page() -> impl Strategy<Value = ConnectionsPage> {
    let weight = proptest::option::of(any::<u16>());
    let endpoint =
        (any_text(), any_text(), any::<u32>(), weight).prop_map(|(address, counter, count, weight)| {
            EndpointConnections { address, counter, connections: count.into(), weight }
        });
    let frontend = (any_text(), any::<u32>())
        .prop_map(|(address, count)| FrontendConnections { address, connections: count.into() });
    let ports = (any_text(), any_text(), any_text(), vec(frontend, 0..4), vec(endpoint, 0..12));
    let port = |(namespace, service, port, frontends, endpoints)| {
        let protocol = "SCTP".to_owned();
        ServicePortConnections { namespace, service, port, protocol, frontends, endpoints }
    };
    (any_text(), any_text(), vec(ports.prop_map(port), 0..8)).prop_map(|(node, mode, service_ports)| {
        ConnectionsPage { node, mode, service_ports, ..ConnectionsPage::default() }
    })
}

fn any_key() -> impl Strategy<Value = KeyCode> {
    let keys = [
        KeyCode::Enter,
        KeyCode::Esc,
        KeyCode::Up,
        KeyCode::Down,
        KeyCode::PageUp,
        KeyCode::PageDown,
        KeyCode::Home,
        KeyCode::End,
        KeyCode::Backspace,
    ];
    prop_oneof![
        proptest::sample::select(keys.to_vec()),
        "[a-z/?]".prop_map(|key| KeyCode::Char(key.chars().next().unwrap()))
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn any_size_and_content_can_be_drawn(
        steps in vec((1..200u16, 1..60u16, any_page(), vec(any_key(), 0..6), 0..4u8), 1..5)
    ) {
        let (mut meter, mut state) = (Meter::default(), TopView::default());
        let mut time = Duration::ZERO;
        for (width, height, page, keys, kind) in steps {
            time += Duration::from_millis(u64::from(kind) * 700);
            let result: Result<Rates, String> =
                if kind == 3 { Err(page.node) } else { Ok(meter.update(page, time)) };
            state.update(result);
            show(&mut state, width, height);
            press(&mut state, &keys);
            let shown = show(&mut state, width, height);
            prop_assert_eq!(shown.lines().count(), usize::from(height));
        }
    }
}
