// Encodes configurations as Nomad agents do: HCL's JSON form, decoded by a plugin's own schema, as MessagePack of cty.

package main

import (
	"fmt"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/hashicorp/hcl/v2/hcldec"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	hcljson "github.com/hashicorp/hcl/v2/json"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/msgpack"

	hclspec "switchyard/wire/nomad/plugins/shared/hclspec"
)

// encode gives the bytes that a plugin with this schema gets for this configuration, given as HCL's JSON.
func encode(schema *hclspec.Spec, config []byte) ([]byte, error) {
	spec, err := convert(schema)
	if err != nil {
		return nil, err
	}
	file, diags := hcljson.Parse(config, "config.json")
	if diags.HasErrors() {
		return nil, diags
	}
	value, diags := hcldec.Decode(file.Body, spec, nil)
	if diags.HasErrors() {
		return nil, diags
	}
	return msgpack.Marshal(value, value.Type())
}

// convert makes the decoder's schema of a plugin's.
func convert(schema *hclspec.Spec) (hcldec.Spec, error) {
	switch block := schema.GetBlock().(type) {
	case *hclspec.Spec_Object:
		object := hcldec.ObjectSpec{}
		for name, nested := range block.Object.GetAttributes() {
			spec, err := convert(nested)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			object[name] = spec
		}
		return object, nil
	case *hclspec.Spec_Attr:
		return convertAttr(block.Attr)
	case *hclspec.Spec_BlockAttrs:
		return convertBlockAttrs(block.BlockAttrs)
	case *hclspec.Spec_BlockValue:
		nested, err := convert(block.BlockValue.GetNested())
		if err != nil {
			return nil, err
		}
		name, required := block.BlockValue.GetName(), block.BlockValue.GetRequired()
		return &hcldec.BlockSpec{TypeName: name, Required: required, Nested: nested}, nil
	case *hclspec.Spec_BlockList:
		nested, err := convert(block.BlockList.GetNested())
		if err != nil {
			return nil, err
		}
		return &hcldec.BlockListSpec{TypeName: block.BlockList.GetName(), Nested: nested}, nil
	default:
		return nil, fmt.Errorf("a schema that this host does not know: %T", block)
	}
}

func convertAttr(attr *hclspec.Attr) (hcldec.Spec, error) {
	kind, err := typeOf(attr.GetType())
	if err != nil {
		return nil, err
	}
	return &hcldec.AttrSpec{Name: attr.GetName(), Type: kind, Required: attr.GetRequired()}, nil
}

func convertBlockAttrs(attrs *hclspec.BlockAttrs) (hcldec.Spec, error) {
	kind, err := typeOf(attrs.GetType())
	if err != nil {
		return nil, err
	}
	return &hcldec.BlockAttrsSpec{TypeName: attrs.GetName(), ElementType: kind, Required: attrs.GetRequired()}, nil
}

// typeOf gives the type that is written as in HCL.
func typeOf(text string) (cty.Type, error) {
	expression, diags := hclsyntax.ParseExpression([]byte(text), "type", hcl.InitialPos)
	if diags.HasErrors() {
		return cty.NilType, diags
	}
	kind, diags := typeexpr.TypeConstraint(expression)
	if diags.HasErrors() {
		return cty.NilType, diags
	}
	return kind, nil
}
