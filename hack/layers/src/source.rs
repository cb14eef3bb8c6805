//! Reads the modules of a crate: the types that each defines and the paths that it uses. Test code is skipped.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use proc_macro2::{Span, TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, UseTree, Visibility};

/// A path from the root of the crate, which has the empty path.
pub type ModulePath = Vec<String>;

#[derive(Debug)]
pub struct Module {
    /// Relative to the root of the workspace, for messages.
    pub file: String,
    pub path: ModulePath,
    /// Every path in the code that may lead to a module of this crate: its segments and its line.
    pub mentions: Vec<(Vec<String>, usize)>,
    /// The names that `use` imports, and their paths.
    pub imports: BTreeMap<String, Vec<String>>,
    pub types: Vec<Type>,
}

/// A public type.
#[derive(Debug)]
pub struct Type {
    pub name: String,
    /// `file:line`
    pub location: String,
}

/// All modules of the crate whose root module is `file`. `root` is the root of the workspace.
pub fn read(root: &Path, file: &Path) -> anyhow::Result<Vec<Module>> {
    let mut reader = Reader { root, modules: Vec::new() };
    // The children of the root module are in its own folder.
    let folder = file.parent().context("the file has no parent folder")?;
    reader.file(file, folder, Vec::new())?;
    Ok(reader.modules)
}

struct Reader<'a> {
    root: &'a Path,
    modules: Vec<Module>,
}

impl Reader<'_> {
    fn file(&mut self, file: &Path, folder: &Path, path: ModulePath) -> anyhow::Result<()> {
        let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        let parsed = syn::parse_file(&text).with_context(|| format!("parsing {}", file.display()))?;
        self.items(&parsed.items, file, folder, path)
    }

    fn items(&mut self, items: &[Item], file: &Path, folder: &Path, path: ModulePath) -> anyhow::Result<()> {
        let name = file.strip_prefix(self.root).unwrap_or(file).display().to_string();
        let mut module = Module {
            file: name.clone(),
            path: path.clone(),
            mentions: Vec::new(),
            imports: BTreeMap::new(),
            types: Vec::new(),
        };
        let mut inner = Vec::new();
        for item in items {
            match item {
                Item::Mod(child) if !is_test(&child.attrs) => inner.push(child),
                Item::Mod(_) => {}
                item => {
                    module.types.extend(public_type(item).map(|(type_name, span)| Type {
                        name: type_name,
                        location: format!("{name}:{}", span.start().line),
                    }));
                    Mentions(&mut module).visit_item(item);
                }
            }
        }
        self.modules.push(module);
        for child in inner {
            self.child(child, file, folder, &path)?;
        }
        Ok(())
    }

    fn child(
        &mut self,
        child: &ItemMod,
        file: &Path,
        folder: &Path,
        parent: &ModulePath,
    ) -> anyhow::Result<()> {
        let name = child.ident.to_string();
        let path: ModulePath = parent.iter().cloned().chain([name.clone()]).collect();
        let below = folder.join(&name);
        if let Some((_, items)) = &child.content {
            return self.items(items, file, &below, path);
        }
        let candidates: [PathBuf; 2] = [folder.join(format!("{name}.rs")), below.join("mod.rs")];
        match candidates.iter().find(|candidate| candidate.exists()) {
            Some(found) => self.file(found, &below, path),
            None => bail!("{} declares module {name}, which has no file", file.display()),
        }
    }
}

/// `#[cfg(test)]`, alone or with other conditions.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg") && {
                let condition = attribute.meta.require_list().map(|list| list.tokens.to_string());
                condition.is_ok_and(|text| text == "test" || text.starts_with("all (test"))
            }
    })
}

fn public_type(item: &Item) -> Option<(String, Span)> {
    let (visibility, attributes, name) = match item {
        Item::Struct(it) => (&it.vis, &it.attrs, &it.ident),
        Item::Enum(it) => (&it.vis, &it.attrs, &it.ident),
        Item::Union(it) => (&it.vis, &it.attrs, &it.ident),
        Item::Trait(it) => (&it.vis, &it.attrs, &it.ident),
        Item::Type(it) => (&it.vis, &it.attrs, &it.ident),
        _ => return None,
    };
    let is_public = matches!(visibility, Visibility::Public(_)) && !is_test(attributes);
    is_public.then(|| (name.to_string(), name.span()))
}

struct Mentions<'a>(&'a mut Module);

impl Mentions<'_> {
    fn add(&mut self, segments: Vec<String>, span: Span) {
        self.0.mentions.push((segments, span.start().line));
    }

    fn import(&mut self, tree: &UseTree, before: &[String]) {
        let with = |name: &dyn ToString| -> Vec<String> {
            before.iter().cloned().chain([name.to_string()]).collect()
        };
        match tree {
            UseTree::Path(path) => self.import(&path.tree, &with(&path.ident)),
            UseTree::Name(name) if name.ident == "self" => {
                self.add(before.to_vec(), name.ident.span());
                if let Some(last) = before.last() {
                    self.0.imports.insert(last.clone(), before.to_vec());
                }
            }
            UseTree::Name(name) => {
                self.add(with(&name.ident), name.ident.span());
                self.0.imports.insert(name.ident.to_string(), with(&name.ident));
            }
            UseTree::Rename(rename) => {
                let path = if rename.ident == "self" { before.to_vec() } else { with(&rename.ident) };
                self.add(path.clone(), rename.ident.span());
                self.0.imports.insert(rename.rename.to_string(), path);
            }
            UseTree::Glob(glob) => self.add(before.to_vec(), glob.star_token.spans[0]),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(tree, before)),
        }
    }

    /// Arguments of macros are not parsed; this finds the paths that start with `crate::` or `super::`.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut start = Span::call_site();
        for token in tokens {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == ':' && !path.is_empty() => {}
                TokenTree::Ident(ident) if path.is_empty() => {
                    if ident == "crate" || ident == "super" {
                        start = ident.span();
                        path.push(ident.to_string());
                    }
                }
                TokenTree::Ident(ident) => path.push(ident.to_string()),
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {
                    if !path.is_empty() {
                        self.add(std::mem::take(&mut path), start);
                    }
                }
            }
        }
        if !path.is_empty() {
            self.add(path, start);
        }
    }
}

impl<'ast> Visit<'ast> for Mentions<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes: &[Attribute] = match item {
            Item::Const(it) => &it.attrs,
            Item::Fn(it) => &it.attrs,
            Item::Impl(it) => &it.attrs,
            Item::Static(it) => &it.attrs,
            Item::Struct(it) => &it.attrs,
            Item::Enum(it) => &it.attrs,
            Item::Use(it) => &it.attrs,
            Item::Macro(it) => &it.attrs,
            _ => &[],
        };
        if !is_test(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_test(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.import(&item.tree, &[]);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1
            && let Some(first) = path.segments.first()
        {
            let segments = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.add(segments, first.ident.span());
        }
        visit::visit_path(self, path);
    }

    /// `pub(in …)` and `pub(super)` contain paths, but use no module.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        self.tokens(item.tokens.clone());
        visit::visit_macro(self, item);
    }
}
