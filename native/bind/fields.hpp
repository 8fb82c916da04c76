// Structs of the core that Python gives field by field, each by name.
//
//   PeelWeights(forwards=..., ranks=...)     every field once: none is left out, none unknown
//   weights.replace(ranks=...)               the same value but for what is named
//   weights.ranks                            what was given
//
// A field is said once, beside its member: `Fields<PeelWeights>().array("ranks", &...::ranks)`.
// Spans look into the arrays that were given, or into copies where these had another type or gaps;
// both are kept alive. A value never changes, so it may be read without the GIL.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace trainwright::numpy {

namespace nb = nanobind;

// A struct with what its fields were given as, by name.
template <typename Struct>
struct Given {
  Struct value{};
  nb::dict fields{};
};

template <typename Struct>
class Fields {
 public:
  // A number, or a truth value.
  template <typename Number>
  Fields&& number(const char* name, Number Struct::* member) && {
    return std::move(*this).add(name, "a number", [member](Struct& self, nb::handle given) {
      Number number{};
      if (!nb::try_cast(given, number)) return nb::object();
      self.*member = number;
      return nb::cast(number);
    });
  }

  template <typename T>
  Fields&& array(const char* name, std::span<const T> Struct::* member) && {
    return std::move(*this).template view<1>(name, "an array", member);
  }

  template <typename T>
  Fields&& table(const char* name, std::span<const T> Struct::* member) && {
    return std::move(*this).template view<2>(name, "a table", member);
  }

  // Another struct of this kind.
  template <typename Part>
  Fields&& part(const char* name, Part Struct::* member) && {
    return std::move(*this).add(name, "a struct", [member](Struct& self, nb::handle given) {
      const Given<Part>* part = nullptr;
      if (!nb::try_cast(given, part) || part == nullptr) return nb::object();
      self.*member = part->value;
      return nb::borrow(given);
    });
  }

  Given<Struct> read(const nb::dict& values) const {
    Given<Struct> made;
    for (const Field& field : fields_) {
      if (!values.contains(field.name.c_str())) fail(field.name + " is missing");
      nb::object kept = field.set(made.value, values[field.name.c_str()]);
      if (!kept.is_valid()) fail(field.name + " must be " + field.kind);
      made.fields[field.name.c_str()] = std::move(kept);
    }
    if (values.size() == fields_.size()) return made;
    for (const auto [name, value] : values) {
      if (!made.fields.contains(name)) fail("there is no " + nb::cast<std::string>(name));
    }
    return made;
  }

  // The class, with a property for each field.
  void bind(nb::module_& module, const char* name) && {
    const auto fields = std::make_shared<const Fields>(std::move(*this));
    nb::class_<Given<Struct>> bound(module, name);
    bound.def("__init__", [fields](Given<Struct>* self, const nb::kwargs& values) {
      new (self) Given<Struct>(fields->read(values));
    });
    bound.def("replace", [fields](const Given<Struct>& self, const nb::kwargs& changes) {
      nb::dict values;
      values.update(self.fields);
      values.update(changes);
      return fields->read(values);
    });
    for (const Field& field : fields->fields_) {
      bound.def_prop_ro(field.name.c_str(), [name = field.name](const Given<Struct>& self) {
        return nb::object(self.fields[name.c_str()]);
      });
    }
  }

 private:
  // Sets the member and gives what to keep; nothing where the value is of another kind.
  using Setter = std::function<nb::object(Struct&, nb::handle)>;

  struct Field {
    std::string name, kind;
    Setter set;
  };

  Fields&& add(const char* name, const char* kind, Setter set) && {
    fields_.push_back({name, kind, std::move(set)});
    return std::move(*this);
  }

  template <int num_dimensions, typename T>
  Fields&& view(const char* name, const char* kind, std::span<const T> Struct::* member) && {
    using Array =
        nb::ndarray<nb::numpy, const T, nb::ndim<num_dimensions>, nb::c_contig, nb::device::cpu>;
    return std::move(*this).add(name, kind, [member](Struct& self, nb::handle given) {
      Array array;
      if (!nb::try_cast(given, array)) return nb::object();
      self.*member = {array.data(), array.size()};
      return nb::cast(array);
    });
  }

  [[noreturn]] static void fail(const std::string& what) { throw nb::type_error(what.c_str()); }

  std::vector<Field> fields_;
};

}  // namespace trainwright::numpy
