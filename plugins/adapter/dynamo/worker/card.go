package worker

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/zeebo/blake3"

	"github.com/batonkv/baton/discovery"
	"github.com/batonkv/baton/internal/bounded"
	"github.com/batonkv/baton/plugins/adapter/dynamo/directory"
)

// ErrModel: a folder that is no model's, as a frontend needs it.
var ErrModel = errors.New("dynamo worker: bad model folder")

// Files of a model that a frontend needs to make tokens of text.
const (
	configFile    = "config.json"
	tokenizerFile = "tokenizer.json"
	formatFile    = "tokenizer_config.json"
	templateFile  = "chat_template.jinja"
	genFile       = "generation_config.json"
)

// maxAsset bounds a file, in bytes.
const maxAsset = 64 << 20

// Assets are the files of a model's folder, as they were when they were read.
type Assets struct {
	folder  string
	files   map[string][]byte
	context int32 // tokens that the model takes; 0: its folder does not say
	chats   bool  // it has a chat template
}

// ReadAssets reads a folder as Hugging Face's programs write it: config.json and tokenizer.json,
// and of tokenizer_config.json, chat_template.jinja and generation_config.json what there is.
// It fails with ErrModel.
func ReadAssets(folder string) (*Assets, error) {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrModel, err)
	}
	a := &Assets{folder: folder, files: map[string][]byte{}}
	for _, name := range []string{configFile, tokenizerFile, formatFile, templateFile, genFile} {
		b, err := bounded.File(filepath.Join(folder, name), maxAsset)
		switch needed := name == configFile || name == tokenizerFile; {
		case errors.Is(err, fs.ErrNotExist) && !needed:
			continue
		case err != nil:
			return nil, fmt.Errorf("%w: %w", ErrModel, err)
		}
		a.files[name] = b
	}
	var model struct {
		Context int32 `json:"max_position_embeddings"`
	}
	var format struct {
		Template json.RawMessage `json:"chat_template"`
	}
	if err := json.Unmarshal(a.files[configFile], &model); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrModel, configFile, err)
	}
	if b := a.files[formatFile]; b != nil {
		if err := json.Unmarshal(b, &format); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrModel, formatFile, err)
		}
	}
	a.context = max(model.Context, 0)
	a.chats = a.files[formatFile] != nil && (a.files[templateFile] != nil || len(format.Template) > len(`""`) && string(format.Template) != "null")
	return a, nil
}

// file is one asset in a card. A frontend reads it at its path or URL and compares the sum.
type file struct {
	Path     string `json:"path"`
	Checksum string `json:"checksum"`
	Size     int    `json:"size"`
}

type modelInfo struct {
	File file `json:"hf_config_json"`
}

type tokenizer struct {
	File file `json:"hf_tokenizer_json"`
}

type formatter struct {
	File file `json:"hf_tokenizer_config_json"`
}

type genConfig struct {
	File file `json:"hf_generation_config_json"`
}

type template struct {
	Of templateOf `json:"hf_chat_template"`
}

type templateOf struct {
	Custom bool `json:"is_custom"`
	File   file `json:"file"`
}

// card is what of Dynamo's model card counts here; routers leave out a worker whose card has
// a wrong field.
type card struct {
	Name      string        `json:"display_name"`
	Slug      string        `json:"slug"`
	Source    string        `json:"source_path"`
	Info      *modelInfo    `json:"model_info,omitempty"`
	Tokenizer *tokenizer    `json:"tokenizer,omitempty"`
	Formatter *formatter    `json:"prompt_formatter,omitempty"`
	Template  *template     `json:"chat_template_file,omitempty"`
	Gen       *genConfig    `json:"gen_config,omitempty"`
	Context   int32         `json:"context_length,omitempty"`
	Block     int32         `json:"kv_cache_block_size"`
	Migration int32         `json:"migration_limit"`
	Type      string        `json:"model_type"`
	Input     string        `json:"model_input"`
	Worker    string        `json:"worker_type"`
	Needs     [][]string    `json:"needs"`
	Runtime   runtimeConfig `json:"runtime_config"`
}

type runtimeConfig struct {
	Data map[string]string `json:"runtime_data"`
	// Blocks of the engine's cache; 0 is not known.
	Blocks int32 `json:"total_kv_blocks,omitempty"`
	// State is where the group's adapter tells routers what the cache holds; they then expect
	// KV events, and ask for those that they missed.
	State     *directory.Endpoint `json:"kv_state_endpoint,omitempty"`
	Publishes bool                `json:"kv_event_publishing_enabled,omitempty"`
	Indexes   bool                `json:"enable_local_indexer,omitempty"`
}

// card makes the instance one that routers route to. Frontends find the model's files under
// base, or, without one, in its folder.
func (w *Worker) card(base string) (directory.Record, error) {
	c := card{Name: w.cfg.Model, Slug: slug(w.cfg.Model), Source: w.cfg.Model, Context: w.cfg.Context, Block: w.cfg.Block, Type: "Completions",
		Input: "Tokens", Worker: "decode", Needs: [][]string{}, Runtime: runtimeConfig{Data: map[string]string{"baton": "v1"}, Blocks: w.room.Load() / w.cfg.Block}}
	if w.cfg.Group != "" {
		c.Runtime.Data["baton_group"] = w.cfg.Group
		if k := w.cfg.Dynamo.KV; k.Wanted() {
			at := w.cfg.Dynamo.State()
			c.Runtime.State, c.Runtime.Publishes, c.Runtime.Indexes = &at, true, !k.LiveOnly
		}
	}
	if a := w.cfg.Assets; a != nil {
		a.name(&c, base)
	}
	if w.cfg.Role == discovery.Prefill {
		// It serves no API of users. Frontends before 1.6 tell its role by the type.
		c.Worker, c.Needs, c.Type = "prefill", [][]string{{"decode"}}, "Prefill"
	}
	b, err := json.Marshal(c)
	if err != nil {
		return directory.Record{}, err
	}
	return directory.NewModel(w.endpoint(), w.id, b).Record()
}

// name has c name the files.
func (a *Assets) name(c *card, base string) {
	c.Source = a.folder
	if c.Context == 0 {
		c.Context = a.context
	}
	if a.chats {
		c.Type = "Chat | Completions"
	}
	of := func(name string) file {
		b := a.files[name]
		sum := blake3.Sum256(b)
		return file{Path: cmp.Or(base, a.folder+"/") + name, Checksum: "blake3:" + hex.EncodeToString(sum[:]), Size: len(b)}
	}
	c.Info, c.Tokenizer = &modelInfo{of(configFile)}, &tokenizer{of(tokenizerFile)}
	if a.files[formatFile] != nil {
		c.Formatter = &formatter{of(formatFile)}
	}
	if a.files[templateFile] != nil {
		c.Template = &template{templateOf{File: of(templateFile)}}
	}
	if a.files[genFile] != nil {
		c.Gen = &genConfig{of(genFile)}
	}
}

// slug is a model's name in the characters that Dynamo's cards allow: one with others makes
// no worker.
func slug(model string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '-', c == '_':
			return c
		case c >= 'A' && c <= 'Z':
			return c - 'A' + 'a'
		}
		return '_'
	}, model)
}
